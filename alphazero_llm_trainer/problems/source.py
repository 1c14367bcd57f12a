"""What a source of problems is, and how it is opened by its name or address.

Everything that the package asks about problems it asks a `Source`: its tasks by split, what a model
reads before them, the grade of a response, and what only some sources know (worked solutions,
levels, a rule that checks a step). No file outside `problems` and `environment` names a source.

An address is the value of `problems.source` (`--source`):

* a name of `BUILT_IN` or of the entry-point group `alphazero_llm_trainer.sources`, some with a
  colon and what to open (`reasoning-gym:chain_sum`, `hub:OWNER/NAME`);
* a file of rows (`FILE.jsonl`, `FILE.parquet`), a folder or a pattern of them;
* an object in a Python file of your own (`file.py:NAME`).
"""

from __future__ import annotations

import glob
import hashlib
import inspect
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ..config.load import Config, read_problems
from ..config.objects import load_object
from ..config.sections import ProblemsConfig
from ..engine.protocol import Teacher
from ..errors import ConfigError, DataError, nearest
from ..grading import answers
from ..grading.graders import GRADERS, Grade, Grader, guess_grader, is_no_answer
from ..live import in_thread
from ..types import Problem, StepCheck, Task
from .calculator import equations, is_calculation
from .prompts import SYSTEM_PROMPTS
from .rows import (
    ROW_FILES,
    Columns,
    Row,
    as_task,
    check_text,
    columns_of,
    files_at,
    ids_in_several_places,
    questions_in,
    row_format,
    settled,
    split_at,
    unread,
)

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "arena", "test")
SHARES = {"test": 15, "validation": 5, "arena": 5, "train": 75}  # of 100 questions
GROUP = "alphazero_llm_trainer.sources"
DEFAULT_LEVELS = (1, 2)  # of generated problems
ANSWER_MARKS = ("####", "\\boxed")  # how a line begins that states the answer
SHOWN = 60  # letters of a question in a message

# name -> module and class. Each is one file, and one line here.
BUILT_IN = {
    "embedded": "embedded_source:Embedded",
    "gsm8k": "gsm8k:Gsm8k",
    "math": "math:Math",
    "hotpotqa": "hotpotqa:HotpotQa",
    "numbers": "numbers:Numbers",
    "pancake": "pancake:Pancake",
    "reasoning-gym": "gym:ReasoningGym",
    "hub": "files:HubRows",
    "file": "files:FileRows",
}
ROW_KEYS = ("question_column", "answer_column", "solution_column", "grade")
KEYS = (*ROW_KEYS, "path", "levels")  # of `problems`, that some sources read


def split_of(text: str, own: Sequence[str] = ()) -> str:
    """The split that a stable hash of a question names, in the shares of `SHARES`: the same on
    every machine. "train" in place of a split in `own`, which the data has of its own.
    """
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100
    for split, share in SHARES.items():
        if place < share:
            return "train" if split in own else split
        place -= share
    raise AssertionError("the shares add up to 100")


class Source(ABC):
    """Problems of one kind. A subclass gives `load`; the other methods fit numbers as answers.

    Attributes:
        name: its address, as `problems.source` says it and `Problem.source` keeps it.
        opens: something may follow its name and a colon.
        grader: how answers are read and compared, a name of `grading.GRADERS`.
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
        return self.reader.vote_key(response)

    def grade_many(self, pairs: Sequence[tuple[str, Task]], strict: bool = False) -> list[Grade]:
        """The grades of responses to tasks, in order. Of a task's gold answers the one counts that a
        response meets best."""
        grades = self.reader.grade_many([(response, task.gold) for response, task in pairs], strict)
        for i, (response, task) in enumerate(pairs):
            if task.others and not grades[i].correct:
                others = [(response, gold) for gold in task.others]
                tried = [grades[i], *self.reader.grade_many(others, strict)]
                grades[i] = max(tried, key=lambda grade: (grade.correct, grade.score))
        return grades

    def grade(self, response: str, task: Task, strict: bool = False) -> Grade:
        """The grade of one response: a verdict and a score in [0, 1]."""
        return self.grade_many([(response, task)], strict)[0]

    async def grade_all(
        self, pairs: Sequence[tuple[str, Task]], strict: bool = False
    ) -> list[Grade]:
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
        verdicts = equations(last)
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
        """See `Source.open`."""
        return cls(problems.levels or cls.default_levels)

    @abstractmethod
    def build(self, split: str, index: int, level: int) -> Task:
        """The task number `index` (from 0) of a split and level: the same on every call."""

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """See `Source.load`."""
        return [
            self.build(split, index, self.levels[index % len(self.levels)])
            for index in range(start, start + count)
        ]


def guess_tokens(*texts: str) -> int:
    """Tokens of a chat of these texts, rather too many: two bytes each, and a template's own."""
    return sum(len(text.encode()) for text in texts) // 2 + 32


class TaskList(Source):
    """Tasks in memory as a source, graded by the rule that fits their gold answers.

    Args:
        tasks: the tasks, or a list for each split; what of validation, arena and test is missing
            there is cut off "train" by a hash of the questions, and so are tasks of no split ("").
        name: the source's name.
        grader: one of `grading.GRADERS`; None takes the one that fits the gold answers.
        system_prompt: what a chat model reads first; None takes the rule's.
        read: how its rows were read, for the line that says which rule grades them.
    """

    def __init__(
        self,
        tasks: Sequence[Task] | Mapping[str, Sequence[Task]],
        name: str,
        grader: str | None = None,
        system_prompt: str | None = None,
        read: str = "",
    ) -> None:
        by_split = once(tasks if isinstance(tasks, Mapping) else {"": tasks}, name)
        divided = by_split.pop("") + by_split.pop("train")
        own = [split for split in by_split if by_split[split]]
        self.tasks = {split: by_split.get(split, []) for split in SPLITS}
        for task in divided:
            self.tasks[split_of(task.problem.question, own)].append(task)
        everything = [task for split in SPLITS for task in self.tasks[split]]
        golds = [gold for task in everything for gold in (task.gold, *task.others)]
        why = "problems.grade says so"
        if grader is None:
            grader, why = guess_grader(golds)
        check_golds(golds, grader, name)
        self.name, self.grader = name, grader
        self.system_prompt = SYSTEM_PROMPTS[grader] if system_prompt is None else system_prompt
        check_tasks(everything, name)
        about = self.system_prompt or ""
        longest = (guess_tokens(about, task.problem.question) for task in everything)
        self.prompt_tokens = max(longest, default=0)
        if golds:
            sizes = ", ".join(
                f"{split} {len(tasks):,}" for split, tasks in self.tasks.items() if tasks
            )
            log.warning("%s: %s; %sgraded as %s, since %s", name, sizes, read, grader, why)

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """See `Source.load`."""
        return self.tasks[split][start : start + count]


def once(by_split: Mapping[str, Sequence[Task]], name: str) -> dict[str, list[Task]]:
    """Tasks by split, with this source's name, each question once: in the split that is furthest
    from training. One line says how many were left out.

    Raises DataError where a question has two gold answers, ConfigError for an unknown split.
    """
    kept: dict[str, list[Task]] = {split: [] for split in (*SHARES, "")}
    unknown = by_split.keys() - kept.keys()
    if unknown:
        raise ConfigError(
            f"{name} has the splits {sorted(unknown)}: the splits are {', '.join(SPLITS)}"
        )
    gold: dict[str, str] = {}  # by question
    for split, tasks in kept.items():
        for task in by_split.get(split, ()):
            question = task.problem.question
            if question not in gold:
                gold[question] = task.gold
                tasks.append(renamed(task, name))
            elif gold[question] != task.gold and not answers.equal(gold[question], task.gold):
                raise DataError(
                    f"{name} asks {question[:SHOWN]!r} twice, with the answer "
                    f"{gold[question][:SHOWN]!r} and with {task.gold[:SHOWN]!r}: keep the right one"
                )
    left_out = sum(map(len, by_split.values())) - len(gold)
    if left_out:
        log.warning("%s: %s of its rows repeat others, and were left out", name, f"{left_out:,}")
    return kept


def renamed(task: Task, name: str) -> Task:
    """The task with this source's name in its problem."""
    return replace(task, problem=replace(task.problem, source=name))


def check_golds(golds: Sequence[str], grader: str, name: str) -> None:
    """Raise DataError for a gold answer that the rule can't grade."""
    read = {"numbers": answers.gold_number, "choice": answers.letter}.get(grader)
    for gold in golds:
        if read is not None and gold.strip() and read(gold) is None:
            raise DataError(
                f"problems.grade is {grader!r} and {name} has the gold answer {gold[:SHOWN]!r},"
                " which that rule can't read: mend it, or leave problems.grade out"
            )


def check_tasks(tasks: Sequence[Task], name: str) -> None:
    """Raise DataError for duplicate ids, empty questions and a gold answer of NaN.

    Other gold answers are looked at by who needs them (`load.check_gold`).
    """
    seen: set[str] = set()
    for task in tasks:
        where = f"source {name}, task {task.problem.id!r}"
        question = check_text(task.problem.question, where)[:SHOWN]
        if task.problem.id in seen:
            raise DataError(
                f"{where}, which asks {question!r}, has the id of another: give each its own, or "
                "leave the column out"
            )
        seen.add(task.problem.id)
        if is_no_answer(task.gold):
            raise DataError(
                f"{where}, which asks {question!r}, has the gold answer {task.gold!r}: "
                "write it or drop it"
            )


def from_rows(rows: Iterable[tuple[str, Row]], problems: ProblemsConfig) -> TaskList:
    """A source of rows, each with its split ("" for none)."""
    rows, tasks = [*rows], dict[str, list[Task]]()
    if not rows:
        raise DataError(
            f"{problems.source} has no rows: write one problem a row, with a question and an answer"
        )
    _, (first, where) = rows[0]
    shown = dict(first)  # a column may begin in a later row
    for _, (row, _) in rows:
        for column, value in row.items():
            if shown.get(column) in (None, ""):
                shown[column] = value
    columns = columns_of((shown, where), problems)
    rows = [(split, part) for split, row in rows for part in questions_in(row, columns)]
    columns = settled(columns, [row for _, row in rows], problems.grade)
    repeated = ids_in_several_places([row for _, row in rows])
    for split, placed in rows:
        task = as_task(placed, columns, problems.source, repeated)
        tasks.setdefault(split, []).append(task)
    read = f"{columns}{unread(shown, columns)}; "
    source = TaskList(tasks, problems.source, problems.grade, problems.system_prompt, read)
    source.reads = ROW_KEYS
    return source


# -- opening one -----------------------------------------------------------------------------------


class UnknownSourceError(ConfigError):
    """An address is of no form that is known."""


_held = dict[str, Source]()  # sources that Python code made, by name
_newest = dict[str, Source]()  # of each name: what a problem's `source` refers to


def open_source(config: Config) -> Source:
    """The source that `problems.source` names, set up as the configuration says.

    Raises ConfigError or DataError with one sentence where there is none, or it can't be opened.
    """
    source = open_problems(config.problems)
    check_reads(config.problems, [source])
    return source


def open_one_of(config: Config, address: str) -> Source:
    """One of several sources: what it doesn't read of the configuration is for the others."""
    return open_problems(config.problems.changed(source=address))


def open_problems(problems: ProblemsConfig) -> Source:
    """The source of a section `problems`, whatever it reads of it."""
    return register(_opened(problems, changed(problems.source)))


def check_reads(problems: ProblemsConfig, sources: Sequence[Source]) -> None:
    """Raise ConfigError where a key says something that none of the sources reads."""
    for key in KEYS:
        value = getattr(problems, key)
        if value is not None and not any(key in source.reads for source in sources):
            names = ", ".join(source.name for source in sources)
            raise ConfigError(
                f"problems.{key} is {value!r}, which source {names} doesn't know: "
                "leave it out, or name another source"
            )


def changed(address: str) -> int:
    """When the newest file that an address names was written, in nanoseconds; 0 where it names
    none.
    """
    place = os.path.expanduser(address.rpartition(":")[0] if ".py:" in address else address)
    files = [Path(place), *files_at(place)]
    return max(file.stat().st_mtime_ns if file.is_file() else 0 for file in files)


@lru_cache(maxsize=16)
def _opened(problems: ProblemsConfig, written: int) -> Source:
    """A run asks for its source in many places; its rows are read, and the user's code is run,
    once.
    """
    address = problems.source
    if address in _held:
        return _held[address]
    name, _, rest = address.partition(":")
    known = names()
    if name in known:
        kind = load_class(known[name])
        if rest and not kind.opens:
            raise ConfigError(f"problems.source is {address!r}: write {name} alone")
        return kind.open(rest, problems)
    if name.endswith(".py") and rest:
        return from_object(load_object(name, rest, "problems.source"), problems)
    if row_format(address) or glob.has_magic(address) or Path(os.path.expanduser(address)).is_dir():
        return load_class(known["file"]).open(address, problems)
    usual = sorted(known.keys() - {"file", "hub"})
    fix = (
        f"choose one of {', '.join(usual)}, a file or a folder of rows ({', '.join(ROW_FILES)}), "
        "hub:OWNER/NAME, or file.py:NAME (a list of tasks, a function that returns one, or a Source)"
    )
    raise UnknownSourceError(f"problems.source is {address!r}: {nearest(address, usual, fix)}")


def names() -> dict[str, metadata.EntryPoint]:
    """Every known name and its class: the built-in ones, and those that packages declare."""
    here = __name__.rpartition(".")[0]
    known = [
        metadata.EntryPoint(name, f"{here}.{place}", GROUP) for name, place in BUILT_IN.items()
    ]
    return {entry.name: entry for entry in (*known, *metadata.entry_points(group=GROUP))}


def load_class(entry: metadata.EntryPoint) -> type[Source]:
    """The class that a known name stands for."""
    try:
        return entry.load()
    except ImportError as error:
        raise ConfigError(
            f"problems.source is {entry.name!r}, which needs a package that is missing ({error})"
        ) from error


def from_object(value: Any, problems: ProblemsConfig) -> Source:
    """A source out of the user's object: a `Source` or its class, tasks, or a function that returns
    tasks."""
    if isinstance(value, type) and issubclass(value, Source):
        value = value()
    if isinstance(value, Source):
        value.name = value.name or problems.source
        return value
    if callable(value):
        try:
            inspect.signature(value).bind()
        except TypeError as error:
            raise ConfigError(
                f"problems.source is {problems.source!r}, a function that takes arguments "
                f"({error}): write one without, that returns tasks; rows may have a `split`"
            ) from None
        value = value()
    return from_tasks(value, problems)


def from_tasks(tasks: Any, problems: ProblemsConfig) -> TaskList:
    """A source out of tasks: `Task`s, (question, answer, solution), where the solution may be
    missing, or mappings as a file's rows, with a `split` or without."""
    address = problems.source
    if isinstance(tasks, str) or not isinstance(tasks, Iterable):
        raise ConfigError(
            f"source {address} is a {type(tasks).__name__}: "
            "give a list of tasks, or a function that does"
        )
    tasks = list(tasks)
    if all(isinstance(task, Task) for task in tasks):
        source = TaskList(tasks, address, problems.grade, problems.system_prompt)
        source.reads = ("grade",)
        return source
    rows = []
    for number, row in enumerate(tasks):
        if isinstance(row, tuple | list):
            row = dict(zip(Columns._fields, row, strict=False))  # noqa: PLW2901
        if not isinstance(row, Mapping):
            raise DataError(
                f"source {address} has {repr(row)[:SHOWN]} as task {number}: give (question, "
                "answer)"
            )
        placed = (row, f"source {address}, task {number}")
        rows.append((split_at(placed), placed))
    return from_rows(rows, problems)


def register(source: Source) -> Source:
    """Make `source` the one that its problems refer to by name."""
    _newest[source.name] = source
    return source


def hold(source: Source) -> str:
    """Keep a source that exists in Python alone; returns the name that `problems.source` opens it
    by in this process.

    Raises ConfigError where its name is another source's address.
    """
    if not source.name or source.name in names():
        raise ConfigError(
            f"a source of your own has the name {source.name!r}: "
            "give it one that no other source has"
        )
    _held[source.name] = register(source)
    _opened.cache_clear()
    return source.name


def gradable(task: Task) -> bool:
    """Whether responses to a task can be graded: it has a gold answer, or its source needs none."""
    return bool(task.gold.strip()) or source_of(task.problem).gold_free


def source_of(problem: Problem) -> Source:
    """The source that a problem came from. One that was never opened in this process is opened as
    it is by default.
    """
    if problem.source not in _newest:
        try:
            source = _opened(read_problems(source=problem.source), 0)
        except UnknownSourceError:  # a question of the user's own
            source = TaskList([], problem.source, "any", "")
        _newest[problem.source] = source
    return _newest[problem.source]


def reading_of(problem: Problem) -> Callable[[str], str | None]:
    """What responses to a problem answer, for votes: as its source reads them."""
    source = source_of(problem)
    return lambda response: source.vote_key(response) or None
