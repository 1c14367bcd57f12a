"""A verifiers taskset as a source of problems: `verifiers:ENV_ID`, any installed V1 taskset whose
tasks are one prompt with one reply, or have toolsets: then each is an episode in a world
(`toolset_worlds`).

`verifiers:ENV_ID?KEY=VALUE&KEY=VALUE` sets the taskset's own options, as `--env.taskset.KEY` does
in `vf-eval`, and `reward_range=LOW:HIGH` says what its rewards can sum up to: 0 to 1 where it is
left out.

A problem is a task's prompt; its id is the task's key. Where the taskset has an option `split` with
named choices, those that mean train, validation, arena or test are these splits; one that it lacks
is cut out of its train split. Where it has no such option (or the address sets it), all four are
cut out of all tasks. Cuts are by a stable hash of the question. Of an endless taskset the first
`MOST_TASKS` tasks are taken.

A reply's grade is the weighted sum of the task's own rewards (`taskset_rules`), scaled from its
range to [0, 1]. The verdict is correct where the scaled sum is 1.0.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, get_args, get_origin

import verifiers.v1 as vf
from verifiers.v1.types import SystemMessage, UserMessage, content_text

from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError
from ..grading import answers
from ..grading.graders import GRADERS, Grade, Verdict
from ..problems.shapes import usual_columns
from ..problems.source import SPLITS, Source, TaskResponses, split_of
from ..problems.task_list import guess_tokens
from ..problems.worlds import Tooling, World
from ..types import Problem, Task
from .argv import is_our_id
from .taskset_rules import (
    RANGE,
    load_environment,
    of_class,
    of_data,
    options_of,
    own_code,
    prompt_messages,
    run_now,
    score_reply,
    why_unscored,
)

log = logging.getLogger(__name__)

GOLD_FIELDS = ("gold", "answer")  # of a task's data
MOST_TASKS = 2_000  # tasks of an endless taskset
REPLIES_AT_ONCE = 32  # replies that are scored at once
FULL_REWARD = 1.0 - 1e-9  # a scaled reward that is 1 but for rounding


class VerifiersTaskset(Source):
    """The tasks of a verifiers taskset; see this module's docstring.

    Args:
        address: what follows `verifiers:`.
        system_prompt: takes the place of the tasks' own, as `--env.taskset.system-prompt` does;
            None keeps theirs.

    Raises:
        ConfigError: the taskset isn't installed, can't be set up, or its tasks ask for what isn't
            here.
    """

    name = "verifiers"
    opens = True
    grader = "exact"
    gold_free = True

    def __init__(self, address: str, system_prompt: str | None = None) -> None:
        env_id, _, query = address.partition("?")
        self.name = f"verifiers:{address}"
        if is_our_id(env_id):
            raise ConfigError(f"problems.source is {self.name!r}: name its own source instead")
        options, (self.low, self.high) = options_of(self.name, query)
        config = load_environment(self.name, env_id, options)
        self.agent, self._override = config.agent, system_prompt
        self._own = {} if "split" in options else own_splits(config.taskset)
        self._tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        self._items: dict[str, vf.Task] = {}
        with own_code(self.name, "loading its tasks"):
            self._read(config.taskset)
        self.prompt_tokens = max(
            guess_tokens(*filter(None, split_prompt(item.data))) for item in self._items.values()
        )
        self._warned = False

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig) -> Source:
        """The source of an address. The taskset's id is behind the colon."""
        if not rest.partition("?")[0]:
            raise ConfigError(
                f"problems.source is {problems.source!r} without a taskset: write "
                "verifiers:ENV_ID, the id that vf-eval takes"
            )
        return cls(rest, problems.system_prompt)

    # -- tasks -------------------------------------------------------------------------------------

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """At most `count` tasks of a split from its number `start` on; fewer, or none, where the
        split ends before that.
        """
        return self._tasks[split][start : start + count]

    def _read(self, config: vf.TasksetConfig) -> None:
        """Read every split of a taskset, or all of it where it has none."""
        splits: dict[str, str | None] = {**self._own} or {"train": None}
        read: dict[str, list[vf.Task]] = {}
        failed: Exception | None = None
        for origin, theirs in splits.items():
            own = config if theirs is None else config.model_copy(update={"split": theirs})
            try:
                read[origin] = list(self._check_tasks(vf.load_taskset(own)))
            except (ValueError, DataError) as error:  # a choice that the rows behind it don't have
                log.warning("%s has no %s split (%s)", self.name, origin, error)
                failed = error
        if not any(read.values()):
            raise failed or ConfigError(
                f"{self.name} has no tasks: name another taskset, or other options of it"
            )
        # One system prompt for all tasks is the source's; where they differ, each stands before its
        # question.
        prompts = {split_prompt(item.data)[0] for items in read.values() for item in items}
        self.system_prompt = prompts.pop() if len(prompts) == 1 else None
        for origin, items in read.items():
            for item in items:
                task, part = self._keep(origin, item), origin
                if origin == "train":
                    part = split_of(task.problem.question, list(self._own))
                self._tasks[part].append(task)

    def _check_tasks(self, taskset: vf.Taskset) -> Iterator[vf.Task]:
        """The tasks of a taskset, with this source's system prompt. Raises ConfigError for one that
        can't be a problem.
        """
        seen: set[type] = set()
        self._taskset = taskset
        self.worlds |= bool(taskset.toolsets(taskset.config))
        for item in taskset if taskset.bounded else islice(taskset, MOST_TASKS):
            reason = of_data(item.data) or (None if type(item) in seen else of_class(item))
            if reason is not None:
                raise ConfigError(f"{self.name} can't be searched, task {item.data.idx}: {reason}")
            seen.add(type(item))
            self.worlds |= bool(item.toolsets(item.config))
            yield item if self._override is None else item.with_system_prompt(self._override)

    def _keep(self, origin: str, item: vf.Task) -> Task:
        """An item of the taskset's split `origin` as a task, remembered by its key."""
        name = item.key if item.key not in self._items else f"{origin}/{item.key}"
        if name in self._items:
            raise DataError(
                f"{self.name} has two tasks with the key {item.key!r}: give each its own"
            )
        self._items[name] = item
        system, question = split_prompt(item.data)
        if system is not None and system != self.system_prompt:
            question = f"{system}\n\n{question}"
        golds = (getattr(item.data, field, None) for field in GOLD_FIELDS)
        gold = next((gold for gold in golds if isinstance(gold, str)), "")
        return Task(Problem(name, question, self.name), gold)

    # -- responses ---------------------------------------------------------------------------------

    def final_answer(self, response: str, strict: bool = False) -> str | None:
        r"""The `####` line or `\boxed{}` where there is one; else, unless strict, all that the
        response says.
        """
        stated = GRADERS["math"].final_answer(response, strict)
        return stated if stated is not None or strict else answers.spoken(response).strip() or None

    def vote_key(self, response: str) -> str:
        """What responses with the same answer share, for majority votes; "" where there is no
        answer.
        """
        return answers.normalize(self.final_answer(response) or "")

    def grade_many(self, pairs: TaskResponses, strict: bool = False) -> list[Grade]:
        """The grades of responses to tasks, in order. `strict` changes nothing: the task's own
        rewards say what counts.
        """
        return run_now(self.grade_all(pairs, strict))

    async def grade_all(self, pairs: TaskResponses, strict: bool = False) -> list[Grade]:
        """`grade_many` without holding up the event loop."""
        gate = asyncio.Semaphore(REPLIES_AT_ONCE)

        async def grade(response: str, task: Task) -> Grade:
            async with gate:
                trace = await self.score(response, task)
            return self._grade(trace, task, self.final_answer(response))

        return list(await asyncio.gather(*(grade(response, task) for response, task in pairs)))

    async def score(self, response: str, task: Task) -> vf.Trace:
        """The trace of a response with the task's own rewards."""
        return await score_reply(self.agent, self._item_of(task), response)

    def world(self, task: Task, tooling: Tooling) -> World:
        """A new episode of a task, where the source has `worlds`."""
        from .toolset_worlds import VerifiersWorld  # its servers take a second to import

        shared = self._taskset.toolsets(self._taskset.config)
        scale = (self.low, self.high)
        return VerifiersWorld(self._item_of(task), tooling, self.agent, shared, scale)

    def _item_of(self, task: Task) -> vf.Task:
        if task.problem.id not in self._items:
            raise DataError(
                f"{self.name} has no task {task.problem.id!r}: "
                "it was made with other options, or by another version"
            )
        return self._items[task.problem.id]

    def _grade(self, trace: vf.Trace, task: Task, stated: str | None) -> Grade:
        reason = why_unscored(trace)
        if reason is not None:
            verdict = Verdict.TIMED_OUT if trace.is_timeout else Verdict.FAILED
            of = f"{self.name} gave no reward for task {task.problem.id!r}"
            error = f"{of} ({reason}): mend its rewards"
            return Grade(verdict, stated, partial=0.0, error=error)
        score = (trace.reward - self.low) / (self.high - self.low)
        if not -1e-9 <= score <= 1 + 1e-9 and not self._warned:
            self._warned = True
            log.warning(
                "%s gave a reward of %g, which is cut to its range of %g to %g: "
                "write ?%s=LOW:HIGH behind its name",
                self.name,
                trace.reward,
                self.low,
                self.high,
                RANGE,
            )
        score = min(1.0, max(0.0, score))
        return Grade(
            Verdict.CORRECT if score >= FULL_REWARD else Verdict.WRONG, stated, partial=score
        )


def own_splits(config: vf.TasksetConfig) -> dict[str, str]:
    """A taskset's own split names by ours (`train`, `test`, ...), as its option `split` lists them;
    {} where it has no such option or none of them is known.
    """
    field = type(config).model_fields.get("split")
    choices = [] if field is None else list(literal_values(field.annotation))
    names = {
        split: name for name, split in reversed(usual_columns("splits").items()) if name in choices
    }
    return {split: names[split] for split in SPLITS if split in names}


def literal_values(annotation: Any) -> Iterator[Any]:
    """The values of every Literal in a type."""
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from literal_values(part)


def split_prompt(data: vf.TaskData) -> tuple[str | None, str]:
    """A task's system prompt and question."""
    said: dict[type, list[str]] = {SystemMessage: [], UserMessage: []}
    for message in prompt_messages(data):
        said[type(message)].append(content_text(message.content))
    [question] = said[UserMessage]
    return "\n\n".join(filter(None, said[SystemMessage])) or None, question
