"""The verifiers taskset: rows -> tasks, and the reward of docs/design.md, section 5, with its parts
as metrics.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, Self

import verifiers.v1 as vf
from pydantic import Field, model_validator

from ..config.load import load_config, resolve_name, user_layers
from ..config.sections import RewardConfig, StudentModel
from ..errors import ConfigError
from ..grading.graders import Grade, Verdict
from ..problems.load import load_tasks
from ..problems.registry import check_reads, check_worlds, is_gradable, open_problems, source_of
from ..rewards.combined import combined, steps_of
from ..rewards.custom import open_reward
from ..types import Direction, Facts, JsonObject, Problem
from ..types import Task as ProblemTask
from .frozen import EMBEDDED, STUDENT_FLAG, find_student, shared_student

DEFAULT_SOURCE = "gsm8k"  # `vf-eval` has another one for the embedded student
# Modules of processes that train, or optimise prompts, on a taskset's rows.
TRAINERS = (
    "prime_rl.configs.rl",
    "prime_rl.entrypoints.orchestrator",
    "prime_rl.orchestrator.train_sink",
    "trl",
    "verifiers.v1.gepa.runner",
)
ENDLESS = 1000  # problems of an endless source where all are asked for


class AlphaZeroTaskConfig(vf.TaskConfig):
    """What scoring needs."""

    use_student_model: bool | None = None
    """Perplexity under the frozen student is a part of the reward. None: on when the embedded
    student answers. Set it as `--env.taskset.use-student-model`.
    """
    student: str | None = None
    """Whose perplexity: a name of models.yaml, a folder or a hub id. Unset: `student` of
    `config_file`, else the embedded student where it answers.
    """
    entry: StudentModel | None = None
    """What models.yaml says of it, where `config_file` names it."""
    custom: str | None = None
    """A reward of your own, fn(problem, response, task) -> number in [0, 1], as file.py:NAME: code
    that runs here.
    """
    weights: RewardConfig | None = None
    """The section `rewards`; unset, that of the YAML file."""

    def check_student(self, model: str) -> None:
        """Raise ConfigError where perplexity is asked for and no student is here to measure the
        served `model` by."""
        if self.use_student_model and (self.student is None or find_spec("torch") is None):
            raise ConfigError(
                f"--use-student-model measures perplexity by a student that is here, and {model} "
                "is served: name one by `student` in --env.taskset.config-file (or "
                f"{STUDENT_FLAG}; it needs PyTorch), or leave the flag out"
            )
        if self.use_student_model:
            find_student(str(self.student), self.entry)

    @property
    def needs(self) -> RewardConfig:
        """The section with the user's own reward in it."""
        weights = load_config().rewards if self.weights is None else self.weights
        return weights if self.custom is None else weights.with_values(custom=self.custom)


class AlphaZeroData(vf.TaskData):
    """A question with its gold answer, as traces record it. Only the rewards read `gold`."""

    id: str | None = None  # verifiers' own from 0.4 on; the one that prime-rl pins has none
    gold: str
    source: str = "embedded"
    split: str = "test"
    level: int = 0
    others: tuple[str, ...] = ()
    row: JsonObject = Field(default_factory=dict)


class AlphaZeroTask(vf.Task[AlphaZeroData, vf.State, AlphaZeroTaskConfig]):
    """One problem. A response's reward is what training gives it (`rewards.combined`), in [0, 1];
    correctness, perplexity and the user's own reward are metrics, which verifiers computes first.
    """

    @property
    def key(self) -> str:
        """The problem's durable id."""
        return self.data.id or self.hash

    def with_student(self, on: bool) -> Self:
        """A copy that scores with (or without) perplexity.

        Raises:
            ConfigError: then no part of the reward that is on has a weight.
        """
        clone = copy.copy(self)
        clone.config = self.config.model_copy(update={"use_student_model": on})
        hre, pre, custom = (
            0.0 if there else None
            for there in (is_gradable(self.own), on, self.config.needs.custom)
        )
        combined(hre, pre, custom, steps=0, right=0, wrong=0, weights=self.config.needs)
        return clone

    async def grade_response(self, response: str, cut: bool = False) -> Grade:
        """The grade of a response by the rule of the problem's source. `cut`: a limit ended the
        response, so that only an answer that is marked as one counts.
        """
        return await source_of(self.own.problem).grade_async(response, self.own, strict=cut)

    @property
    def own(self) -> ProblemTask:
        """The task as this package has it, without its worked solution."""
        return ProblemTask(
            Problem(self.key, self.data.prompt_text, self.data.source, self.data.level),
            self.data.gold,
            others=self.data.others,
            row=self.data.row,
        )

    @vf.metric
    async def correctness_reward(self, trace: vf.Trace) -> float | Mapping[str, float]:
        """HRE: the score of the response's final answer by its source's rule: 1.0 or 0.0, between
        them where it is partial; not recorded for a task that can't be graded.
        """
        if not is_gradable(self.own):
            return {}
        return (await self.grade_response(response_text(trace), was_cut(trace))).score

    @vf.metric
    async def perplexity_reward(self, trace: vf.Trace) -> float | Mapping[str, float]:
        """PRE of the response under the frozen student, in [0, 1]; not recorded at all where it is
        switched off.
        """
        if not self.config.use_student_model:
            return {}
        problem = Problem(self.key, self.data.prompt_text, "vf-eval")
        student = self.config.student or EMBEDDED
        frozen = shared_student(student, self.config.entry, self.data.system_prompt)
        sampled = trace.info.get("mcts", trace.info).get("token_ids") or None
        ids = sampled if student == EMBEDDED else None
        return await frozen.perplexity_reward(problem, response_text(trace), ids)

    @vf.metric
    async def custom_reward(self, trace: vf.Trace) -> float | Mapping[str, float]:
        """The user's own reward of the response, in [0, 1]; not recorded at all without one.

        Raises:
            RewardError: it gave no such number; the rollout counts as failed.
        """
        custom = open_reward(self.config.needs)
        if custom is None:
            return {}
        return await custom(self.own.problem, response_text(trace), self.own)

    @vf.reward(weight=1.0)
    async def combined_reward(self, trace: vf.Trace) -> float:
        """The parts by their weights, less what the steps cost, with the bonus and the penalty of a
        search's directions.
        """
        directions = trace.info.get("mcts", {}).get("directions", ())
        correct = trace.metrics.get("correctness_reward")
        grade = (
            await self.grade_response(response_text(trace), was_cut(trace))
            if correct == 0
            else None
        )
        return combined(
            correct,
            trace.metrics.get("perplexity_reward"),
            trace.metrics.get("custom_reward"),
            steps=steps_of(response_text(trace)),
            right=directions.count(Direction.RIGHT),
            wrong=directions.count(Direction.WRONG),
            weights=self.config.needs,
            answered=grade is None or grade.verdict is not Verdict.UNPARSED,
        ).total

    async def validate(self, runtime: vf.Runtime) -> bool:
        """Whether the gold answer can be read and equals itself, where there is one."""
        return not self.data.gold or (await self.grade_response(f"#### {self.data.gold}")).correct


def was_cut(trace: vf.Trace) -> bool:
    """Whether the limit of tokens ended the last reply, where that is what is scored."""
    if "mcts" in trace.info:
        return False
    last = next((call for call in reversed(trace.calls) if call.error is None), None)
    return last is not None and last.finish_reason == "length"


def response_text(trace: vf.Trace) -> str:
    """What is scored: search's chosen response, or the last reply (which under search is only its
    last leaf).
    """
    chosen = trace.info.get("mcts")
    return trace.last_reply if chosen is None else chosen["response"]


class AlphaZeroTasksetConfig(vf.TasksetConfig):
    """`--env.taskset.*`"""

    task: AlphaZeroTaskConfig = AlphaZeroTaskConfig()
    """Scoring, under `--env.taskset.task.*`."""
    source: str | None = None
    """Which problems: a name, a file, or another address. Unset: `problems.source` of
    `config_file`, else gsm8k (embedded under `vf-eval` with the embedded student).
    """
    split: Literal["train", "validation", "arena", "test"] | None = None
    """Which split (math has test alone, unless `path` has a train.jsonl). Unset: test; where a
    trainer runs it has to be named.
    """
    train_size: Annotated[int, Field(ge=1)] | None = None
    """Problems of the train split. Unset: all of them, and 1,000 of an endless source (50 under
    `vf-eval`).
    """
    eval_size: Annotated[int, Field(ge=1)] = 20
    """Problems of any other split."""
    levels: list[Annotated[int, Field(ge=1, le=4)]] | None = None
    """Difficulty levels of embedded, numbers and pancake, 1-4 (unset: the default mix)."""
    path: str | None = None
    """A folder with the rows as .jsonl files, in the hub's columns (unset: ALPHAZERO_DATA_DIR, then
    the hub).
    """
    tier: Literal["none", "free", "production", "local"] = "none"
    """Teachers that may propose steps in search (`--env.agent.harness.search mcts`); they need
    their tier's key.
    """
    use_student_model: bool | None = None
    """Perplexity under the frozen student as 0.6 of the reward. Unset: on when the embedded student
    answers.
    """
    config_file: Path | None = None
    """A YAML file over the shipped training.yaml: reward weights, and problems.* but for shots;
    what is set here wins.
    """

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        """Source and split stand in every saved configuration, as if they had been named."""
        unnamed = {"source": self.source_of_file or DEFAULT_SOURCE} if self.source is None else {}
        if self.split is None and find_trainer() is None:
            unnamed["split"] = "test"
        self.__dict__ |= unnamed  # past `model_fields_set`, which says what the user named
        return self

    @property
    def of_file(self) -> Facts:
        """What the YAML file says."""
        return user_layers(self.config_file, ())[0] if self.config_file is not None else {}

    @property
    def source_of_file(self) -> str | None:
        """`problems.source` of the YAML file, None where it names none."""
        source: str | None = self.of_file.get("problems", {}).get("source")
        return None if source == "auto" else source

    def tell_the_task(self) -> None:
        """Copy weights, perplexity and whose it is into the task's own configuration: of a saved
        run `vf-replay` reads nothing else.
        """
        config = load_config(self.config_file)
        self.task = scoring_config(self, config.rewards)
        if self.task.student is None and "student" in self.of_file:
            name = resolve_name(config)
            self.task.student, self.task.entry = name, config.models[name]

    @property
    def size(self) -> int | None:
        """How many problems the split gives, None for all of them."""
        return self.train_size if self.split == "train" else self.eval_size


class AlphaZeroTaskset(vf.Taskset[AlphaZeroTask, AlphaZeroTasksetConfig]):
    """The problems of a source as tasks."""

    def load(self) -> Iterator[AlphaZeroTask]:
        """The tasks of the chosen source and split.

        Raises:
            DataError, ConfigError: one sentence with the fix.
        """
        chosen = self.config
        config = load_config(chosen.config_file)
        if chosen.split is None:
            raise ConfigError(
                f"split isn't named, and {find_trainer()} may train on these rows or evaluate on "
                'them: name split = "train" for training, split = "test" for an evaluation'
            )
        own = chosen.model_dump(include={"source", "levels", "path"}, exclude_none=True)
        problems = type(config.problems).model_validate(config.problems.model_dump() | own)
        source = open_problems(problems)
        check_reads(problems, [source])
        check_worlds((), source, command="vf-eval")
        chosen.tell_the_task()
        task_config = chosen.task
        likely = task_config.use_student_model
        open_reward(task_config.needs)  # what is wrong with it is said before anything runs
        size = chosen.size
        if size is None:
            size = ENDLESS if source.endless else sys.maxsize
        for row in load_tasks(source, chosen.split, size, rewards=task_config.needs):
            task = AlphaZeroTask(task_data(row, chosen.split), task_config)
            yield task if likely is None else task.with_student(likely)


def scoring_config(chosen: AlphaZeroTasksetConfig, rewards: RewardConfig) -> AlphaZeroTaskConfig:
    """The task's configuration: the taskset's switch and file, else what the task has of its own,
    else `rewards`.
    """
    likely, weights = chosen.use_student_model, chosen.task.weights
    if likely is None:
        likely = chosen.task.use_student_model
    if likely is None and not rewards.use_student_model:
        likely = False
    if weights is None or chosen.config_file is not None:
        weights = rewards
    return chosen.task.model_copy(update={"weights": weights, "use_student_model": likely})


def find_trainer() -> str | None:
    """The trainer that runs in this process, None where nothing trains. A taskset isn't told what
    it is loaded for.
    """
    running = next((name for name in TRAINERS if name in sys.modules), None)
    return None if running is None else running.partition(".")[0]


def task_data(row: ProblemTask, split: str = "test") -> AlphaZeroData:
    """A task of this package as verifiers' wire data."""
    problem = row.problem
    return AlphaZeroData(
        id=problem.id,
        name=problem.id,
        prompt=problem.question,
        system_prompt=source_of(problem).system_prompt,
        gold=row.gold,
        others=row.others,
        source=problem.source,
        split=split,
        level=problem.level,
        row=json.loads(json.dumps(dict(row.row), default=str)),
    )
