"""A verifiers taskset as a source of problems: `verifiers:ENV_ID`, any installed single-turn V1 taskset.

`verifiers:ENV_ID?KEY=VALUE&KEY=VALUE` sets the taskset's own options, as `--env.taskset.KEY` does in `vf-eval`, and
`reward_range=LOW:HIGH` says what its rewards can sum up to.

A problem is a task's prompt; its id is the task's key. Where the taskset has an option `split` with named choices, those
that mean train, validation, arena or test are these splits; one that it lacks is cut out of its train split. Where it has
no such option (or the address sets it), all four are cut out of all tasks. Cuts are by a stable hash of the question.

A reply's grade is the weighted sum of the task's own rewards (`taskset_scoring`), scaled to [0, 1] by its range: what the
address declares, else each score in [0, 1] times its weight, widened by what a few replies to the first tasks earn when the
source is opened. The verdict is correct where the scaled sum is 1.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

import verifiers.v1 as vf
from verifiers.v1.types import SystemMessage, UserMessage, content_text

from .. import answers
from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError
from ..problems.grading import RULES, Grade, Verdict
from ..problems.source import SPLITS, Source, by_hash
from ..problems.splits import split_of
from ..types import Problem, Task
from .argv import is_our_id
from .taskset_checks import RANGE, TaskCheck, check_environment, load_environment, options_of, own_code
from .taskset_scoring import Range, Scorer, failure, range_of, run_now

log = logging.getLogger(__name__)

SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "arena": ("arena",),
    "test": ("test", "eval", "evaluation"),
}
GOLD_FIELDS = ("gold", "answer")  # of a task's data
FIRST = 32  # tasks of an endless taskset that are read when it is opened
MOST = 20_000  # tasks of one that are read for one more of a split
TRIED = 2  # tasks whose rewards are tried when the source is opened
WHOLE = 1.0 - 1e-9  # a scaled reward that is 1 but for rounding
CHARACTERS = 3  # of a token, at least


class VerifiersTaskset(Source):
    """The tasks of a verifiers taskset; see this module's docstring.

    Args:
        address: what follows `verifiers:`.
        system_prompt: takes the place of the tasks' own, as `--env.taskset.system-prompt` does; None keeps theirs.

    Raises:
        ConfigError: the taskset isn't installed, can't be set up, or its tasks are more than one prompt with one reply.
    """

    name = "verifiers"
    rule = "exact"
    gold_free = True

    def __init__(self, address: str, system_prompt: str | None = None) -> None:
        env_id, _, query = address.partition("?")
        self.name = f"verifiers:{address}"
        options, declared = options_of(self.name, query)
        environment, config = load_environment(self.name, env_id, options)
        with own_code(self.name, "setting it up"):
            taskset = vf.load_taskset(outcome_alone(config.taskset) if is_our_id(env_id) else config.taskset)
            check_environment(self.name, environment, taskset)
        assert isinstance(config, vf.SingleAgentEnvConfig)
        self.score, self._check, self._override = Scorer(config), TaskCheck(), system_prompt
        self._own = {} if "split" in options else own_splits(config.taskset)
        self.endless = not taskset.bounded
        self._tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        self._items: dict[str, vf.Task] = {}
        with own_code(self.name, "loading its tasks"):
            self._streams = {split: self._stream(taskset, theirs) for split, theirs in self._own.items()}
            if not self._own:
                self._streams["train"] = self._stream(taskset, None)
            if self.endless:
                self._read_first()
            else:
                self._read_all()
        self.prompt_tokens = max((len(words(item)) for item in self._items.values()), default=0) // CHARACTERS + 32
        self.range = Range(*declared) if declared else self._observed()
        self._warned = False

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """See `Source.open`: the taskset's id is behind the colon."""
        if not rest.partition("?")[0]:
            raise ConfigError(
                f"problems.source is {problems.source!r} without a taskset: write verifiers:ENV_ID, the id that vf-eval takes"
            )
        return cls(rest, problems.system_prompt)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """See `Source.load`. Of an endless taskset, tasks are read until the split has as many."""
        tasks, origin = self._tasks[split], split if split in self._own else "train"
        for _ in range(MOST if self.endless else 0):
            if len(tasks) >= start + count or not self._read_one(origin):
                break
        return tasks[start : start + count]

    def _stream(self, taskset: vf.Taskset, theirs: str | None) -> Iterator[vf.Task]:
        """The tasks of one of the taskset's own splits (None: as it is), each checked."""
        if theirs is not None:
            taskset = type(taskset)(taskset.config.model_copy(update={"split": theirs}))
        for item in taskset:
            told = item if self._override is None else item.with_system_prompt(self._override)
            self._check(self.name, told)
            yield told

    def _read_all(self) -> None:
        """Read a taskset that ends, every split of it."""
        read: dict[str, list[vf.Task]] = {}
        failed: Exception | None = None
        for origin, stream in self._streams.items():
            try:
                read[origin] = list(stream)
            except (ValueError, DataError) as error:  # a choice that the rows behind it don't have
                log.warning("%s has no %s split (%s)", self.name, origin, error)
                failed = error
        items = [item for found in read.values() for item in found]
        if not items:
            raise failed or ConfigError(f"{self.name} has no tasks: name another taskset, or other options of it")
        self._settle(items)
        keys = {origin: [item.key for item in found] for origin, found in read.items()}
        everywhere = [key for found in keys.values() for key in set(found)]
        clash = len(set(everywhere)) < len(everywhere)
        for origin, found in read.items():
            ids = [f"{origin}/{key}" if clash else key for key in keys[origin]]
            tasks = [self._as_task(item, name) for item, name in zip(found, ids, strict=True)]
            one_each = list({task.problem.question: task for task in tasks}.values())
            parts = {task.problem.question: part for part, cut in by_hash(one_each).items() for task in cut}
            for item, task in zip(found, tasks, strict=True):
                if task.problem.id in self._items:
                    raise DataError(f"{self.name} has two tasks with the key {task.problem.id!r}: give each its own")
                self._keep(origin, item, task, parts[task.problem.question])

    def _read_first(self) -> None:
        """Read the beginning of a taskset that doesn't end."""
        first = {origin: [next(stream) for _ in range(FIRST)] for origin, stream in self._streams.items()}
        self._settle([item for items in first.values() for item in items])
        for origin, items in first.items():
            for item in items:
                self._keep_endless(origin, item)

    def _read_one(self, origin: str) -> bool:
        """Read one more task of an endless taskset; False where it has no more after all."""
        stream = self._streams.get(origin)
        item = None if stream is None else next(stream, None)
        if item is not None:
            self._keep_endless(origin, item)
        return item is not None

    def _keep_endless(self, origin: str, item: vf.Task) -> None:
        task = self._as_task(item, item.key)
        if task.problem.id not in self._items:
            self._keep(origin, item, task, split_of(task.problem.question))

    def _keep(self, origin: str, item: vf.Task, task: Task, part: str) -> None:
        """Put a task read from `origin` into its split; `part` is what a cut by its question's hash names."""
        split = part if origin == "train" and part not in self._own else origin
        self._items[task.problem.id] = item
        self._tasks[split].append(task)

    def _settle(self, items: Sequence[vf.Task]) -> None:
        """One system prompt for all tasks is the source's; where they differ, each stands before its question."""
        prompts = {prompt_of(item.data)[0] for item in items}
        self.system_prompt = prompts.pop() if len(prompts) == 1 else None

    def _as_task(self, item: vf.Task, name: str) -> Task:
        system, question = prompt_of(item.data)
        if system is not None and system != self.system_prompt:
            question = f"{system}\n\n{question}"
        golds = (getattr(item.data, field, None) for field in GOLD_FIELDS)
        gold = next((gold for gold in golds if isinstance(gold, str)), "")
        return Task(Problem(name, question, self.name), gold)

    def _item(self, name: str) -> vf.Task:
        """The taskset's own task of a problem's id."""
        for _ in range(MOST if self.endless else 0):
            if name in self._items or not any([self._read_one(origin) for origin in self._streams]):
                break
        if name not in self._items:
            raise DataError(f"{self.name} has no task {name!r}: it was made with other options, or by another version")
        return self._items[name]

    # -- responses ---------------------------------------------------------------------------------------------------

    def final_answer(self, response: str, strict: bool = False) -> str | None:
        r"""The `####` line or `\boxed{}` where there is one; else, unless strict, the whole response."""
        stated = RULES["math"].final_answer(response, strict)
        return stated if stated is not None or strict else response.strip() or None

    def vote_key(self, response: str) -> str:
        """See `Source.vote_key`."""
        return answers.normalize(self.final_answer(response) or "")

    def grade_many(self, pairs: Sequence[tuple[str, Task]], strict: bool = False) -> list[Grade]:
        """See `Source.grade_many`. `strict` changes nothing: the task's own rewards say what counts."""
        return run_now(self.grade_all(pairs, strict))

    async def grade_all(self, pairs: Sequence[tuple[str, Task]], strict: bool = False) -> list[Grade]:
        """See `Source.grade_all`."""
        return list(await asyncio.gather(*(self._grade(response, task) for response, task in pairs)))

    async def _grade(self, response: str, task: Task) -> Grade:
        trace, stated = await self.score(self._item(task.problem.id), response), self.final_answer(response)
        reason = failure(trace)
        if reason is not None:
            verdict = Verdict.TIMED_OUT if trace.is_timeout else Verdict.FAILED
            error = f"{self.name} gave no reward for task {task.problem.id!r} ({reason}): mend its rewards"
            return Grade(verdict, stated, partial=0.0, error=error)
        if not self.range.holds(trace.reward) and not self._warned:
            self._warned = True
            log.warning(
                "%s gave a reward of %g, which is cut to its range of %g to %g: write ?%s=LOW:HIGH behind its name",
                self.name, trace.reward, self.range.low, self.range.high, RANGE,
            )  # fmt: skip
        score = self.range.scaled(trace.reward)
        return Grade(Verdict.CORRECT if score >= WHOLE else Verdict.WRONG, stated, partial=score)

    def _observed(self) -> Range:
        """The rewards' range, by their weights and by a few replies to the first tasks."""
        first = next(tasks for tasks in self._tasks.values() if tasks)[:TRIED]
        replies = [(task, reply) for task in first for reply in ("I don't know.", *stating(task.gold))]

        async def score_all() -> list[vf.Trace]:
            items = [(self._item(task.problem.id), reply) for task, reply in replies]
            return list(await asyncio.gather(*(self.score(item, reply) for item, reply in items)))

        traces = run_now(score_all())
        reason = next((reason for trace in traces if (reason := failure(trace)) is not None), None)
        if reason is not None:
            raise ConfigError(f"{self.name} can't score a reply ({reason}): mend its rewards")
        found = range_of(traces)
        if found.low == found.high:
            raise ConfigError(
                f"{self.name} gives {found.low:g} for every reply: write ?{RANGE}=LOW:HIGH behind its name"
            )
        weights = {
            name: reward.weight for trace in traces for name, reward in trace.rewards.items() if reward is not None
        }
        told = " + ".join(f"{weight:g} x {name}" for name, weight in weights.items())
        log.info("%s: rewards %s, from %g to %g, are scaled to [0, 1]", self.name, told, found.low, found.high)
        return found


def outcome_alone(config: Any) -> vf.TasksetConfig:
    """This package's own taskset without what a response's steps and directions cost: training takes that off itself."""
    task = config.task.model_copy(update={"step_penalty": 0.0, "right_bonus": 0.0, "wrong_penalty": 0.0})
    return config.model_copy(update={"task": task})


def own_splits(config: vf.TasksetConfig) -> dict[str, str]:
    """The choices of a taskset's option `split`, by what they are called here; {} where it has none that is known."""
    field = type(config).model_fields.get("split")
    choices = [] if field is None else list(choices_of(field.annotation))
    found = {split: next((name for name in known if name in choices), None) for split, known in SPLIT_NAMES.items()}
    return {split: name for split, name in found.items() if name is not None}


def choices_of(annotation: Any) -> Iterator[Any]:
    """The values of every Literal in a type."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from choices_of(part)


def prompt_of(data: vf.TaskData) -> tuple[str | None, str]:
    """A task's system prompt and question."""
    if isinstance(data.prompt, str):
        return data.system_prompt, data.prompt
    said = [content_text(message.content) for message in data.prompt or [] if isinstance(message, SystemMessage)]
    told = [text for text in (data.system_prompt, *said) if text]
    asked = [content_text(message.content) for message in data.prompt or [] if isinstance(message, UserMessage)]
    return "\n\n".join(told) or None, "\n\n".join(asked)


def words(item: vf.Task) -> str:
    """Everything that a task's prompt says."""
    return "".join(part or "" for part in prompt_of(item.data))


def stating(gold: str) -> tuple[str, ...]:
    """Replies that state an answer, in the two usual forms."""
    return (f"#### {gold}", f"\\boxed{{{gold}}}") if gold else ()
