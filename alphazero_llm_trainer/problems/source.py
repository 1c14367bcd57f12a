"""What a source of problems is: its tasks by split, what a model reads before them, the grade of a
response, and what only some sources know (worked solutions, levels, a rule that checks a step).

Everything that the package asks about problems it asks a `Source`. A new one is a subclass in a
file of its own, with a line in `BUILT_IN` of `registry.py`; one of a user's own is `file.py:NAME`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from ..config.sections import ProblemsConfig
from ..engine.protocol import Teacher
from ..grading.graders import GRADERS, Grade, Grader, Verdict
from ..live import in_thread
from ..types import Problem, Said, StepCheck, Task
from .calculator import check_equations, is_calculation
from .worlds import Tooling, World

SPLITS = ("train", "validation", "arena", "test")
SPLIT_SHARES = {"test": 15, "validation": 5, "arena": 5, "train": 75}  # of 100 questions
DEFAULT_LEVELS = (1, 2)  # of generated problems
WON = {True: Verdict.CORRECT, False: Verdict.WRONG, None: Verdict.UNPARSED}  # of a game
TaskResponses = Sequence[tuple[str, Task]]  # responses, each with its task
ANSWER_MARKS = ("####", "\\boxed")  # how a line begins that states the answer


def split_of(text: str, own: Sequence[str] = ()) -> str:
    """The split that a stable hash of a question names, in the shares of `SPLIT_SHARES`: the same
    on every machine. "train" in place of a split in `own`, which the data has of its own.
    """
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100
    for split, share in SPLIT_SHARES.items():
        if place < share:
            return "train" if split in own else split
        place -= share
    raise AssertionError("the shares add up to 100")


class Source(ABC):
    """Problems of one kind. A subclass gives `load`; the other methods fit numbers as answers.

    Attributes:
        name: its address, as `problems.source` says it and `Problem.source` keeps it.
        opens: something may follow its name and a colon.
        grader: how answers are read and compared, a name of `graders.GRADERS`.
        system_prompt: what a chat model reads before a problem, None for nothing.
        endless: a split has as many tasks as are asked for.
        reads: the keys of `KEYS` that it reads.
        demonstration_share: share of a training batch that replays worked solutions unless the
            configuration says.
        gold_free: its grades need no gold answer.
        plays: its problems are games, and one that isn't won has no answer.
        strict_steps: each step is a calculation (`9 * 2 = 18`), so that one that can't be read is
            wrong.
        deterministic: a step leads to one state, so that a state is worth its best step
            (`search.backup: max` is tried).
        worlds: its problems are episodes of turns, see `world`.
        scratch: the recipe of `config/` that `sft` trains a student from scratch by.
        prompt_tokens: tokens of a long prompt with its system prompt and chat template, for the
            context and the memory plan.
    """

    name: str = ""
    opens: bool = False
    grader: str = "numbers"
    endless: bool = False
    reads: tuple[str, ...] = ()
    demonstration_share: float = 0.0
    gold_free: bool = False
    plays: bool = False
    strict_steps: bool = False
    deterministic: bool = False
    worlds: bool = False
    scratch: str = "sft_scratch.yaml"
    prompt_tokens: int = 320
    system_prompt: str | None = None

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig) -> Source:
        """The source of an address.

        Args:
            rest: what follows the name and its colon; "" where nothing does.
            problems: the configuration's section: levels, columns, rules, a folder with rows.
        """
        return cls()

    @abstractmethod
    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """At most `count` tasks of a split from its number `start` on; fewer, or none, where the
        split ends before that.

        Splits are disjoint and a task is the same on every call.

        Raises:
            DataError: rows are missing or broken; one sentence naming file, line and fix.
        """

    def demonstrations(self, count: int) -> list[Task]:
        """At most `count` tasks with worked solutions, which sft learns from and training replays:
        by default the first of training.

        They may differ from what is searched.
        """
        return self.load("train", count)

    # -- responses ---------------------------------------------------------------------------------

    @property
    def reader(self) -> Grader:
        """The rule's object: answers, votes and plain grades."""
        return GRADERS[self.grader]

    def final_answer(self, response: str, strict: bool = False) -> str | None:
        r"""The answer that `response` states, as written, or None; here it is decided for training,
        search and evaluation.

        strict: a limit cut the response, and only what marks an answer counts: a `####` line or a
        `\boxed{}`.
        """
        return self.reader.final_answer(response, strict)

    def vote_key(self, response: str) -> str:
        """What responses with the same answer share, for majority votes; "" where there is no
        answer.
        """
        return self.reader.key(self.final_answer(response) or "")

    def grade_many(self, pairs: TaskResponses, strict: bool = False) -> list[Grade]:
        """The grades of responses to tasks, in order. Of a task's gold answers the one counts that
        a response meets best."""
        own = type(self).final_answer is not Source.final_answer  # a rule for each kind else
        read = self.final_answer if own else None
        first = [(response, task.gold) for response, task in pairs]
        grades = self.reader.grade_many(first, strict, read)
        for i, (response, task) in enumerate(pairs):
            if task.others and not grades[i].correct:
                others = [(response, gold) for gold in task.others]
                tried = [grades[i], *self.reader.grade_many(others, strict, read)]
                grades[i] = max(tried, key=lambda grade: (grade.correct, grade.score))
        return grades

    def grade(self, response: str, task: Task, strict: bool = False) -> Grade:
        """The grade of one response: a verdict and a score in [0, 1]."""
        return self.grade_many([(response, task)], strict)[0]

    async def grade_all(self, pairs: TaskResponses, strict: bool = False) -> list[Grade]:
        """`grade_many` without holding up the event loop."""
        if self.reader.waits:
            return await in_thread(self.grade_many, pairs, strict)
        return self.grade_many(pairs, strict)

    async def grade_async(self, response: str, task: Task, strict: bool = False) -> Grade:
        """`grade` without holding up the event loop."""
        return (await self.grade_all([(response, task)], strict))[0]

    # -- what some sources know --------------------------------------------------------------------

    def check_step(self, problem: Problem, steps: Sequence[str]) -> bool | StepCheck | None:
        """Whether the last of `steps` is right as far as a rule can say without gold: None where it
        states something that the rule can't check, `StepCheck.NOTHING` where it states nothing.

        By default, whether its equations are true. Under `strict_steps` a line that is neither a
        calculation nor states the answer is wrong.
        """
        last = steps[-1]
        verdicts = check_equations(last)
        if self.strict_steps:
            states = last.lstrip().startswith(ANSWER_MARKS)
            if states and "=" not in last and self.final_answer(last, strict=True) is not None:
                return StepCheck.NOTHING
            return is_calculation(last) and all(verdicts)
        if not verdicts:
            return StepCheck.NOTHING
        return False if False in verdicts else None if None in verdicts else True

    def state(self, problem: Problem, steps: Sequence[str]) -> str | None:
        """What the state after right `steps` is known by: one that a search has reached already, by
        other steps and no more of them, is not searched twice. None: no two states are alike.
        """
        return None

    def world(self, task: Task, tooling: Tooling) -> World:
        """A new episode of a task, where the source has `worlds`."""
        raise NotImplementedError

    def turns(self, task: Task) -> list[Said]:
        """The student's turns of a demonstration, where the source has `worlds`; [] without one."""
        return []

    def task_of(self, problem: Problem) -> Task:
        """The task of a problem for its world, which may have no gold answer."""
        return Task(problem, "")

    def outcome(self, turn: str, seen: str) -> str:
        """What of an episode's last turn, and of what the world answered, states its answer."""
        return turn

    def scripted_teacher(self, error_rate: float) -> Teacher | None:
        """A teacher that runs offline by the source's own rules and slips at a rate of
        `error_rate`, or None.
        """
        return None

    def vocabulary_texts(self) -> Iterable[str]:
        """Texts with every word of the source, where a small vocabulary covers it; () where none
        does.
        """
        return ()


class GeneratedSource(Source):
    """Problems that rules make, as many as are asked for, in `levels` by turns."""

    endless = True
    reads = ("levels",)
    demonstration_share = 0.2
    default_levels: tuple[int, ...] = DEFAULT_LEVELS

    def __init__(self, levels: tuple[int, ...]) -> None:
        self.levels = levels

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig) -> Source:
        """The source of an address."""
        return cls(problems.levels or cls.default_levels)

    @abstractmethod
    def build(self, split: str, index: int, level: int) -> Task:
        """The task number `index` (from 0) of a split and level: the same on every call."""

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """At most `count` tasks of a split from its number `start` on; fewer, or none, where the
        split ends before that.
        """
        return [
            self.build(split, index, self.levels[index % len(self.levels)])
            for index in range(start, start + count)
        ]


class Game(GeneratedSource):
    """A game that is graded by its rules: what steps lead to, they say themselves."""

    deterministic = True
    prompt_tokens = 64

    @abstractmethod
    def play(self, response: str, problem: Problem) -> tuple[bool | None, str | None]:
        """Whether a response wins the game, None where it makes no move, and its answer."""

    def grade_many(self, pairs: TaskResponses, strict: bool = False) -> list[Grade]:
        """The grades of responses to tasks, in order: correct is what wins."""
        played = [self.play(response, task.problem) for response, task in pairs]
        return [Grade(WON[won], answer) for won, answer in played]
