"""What a source of problems is, and how one is found by its name or address.

Everything that the package asks about problems it asks a `Source`: its tasks by split, what a model is told before
them, the grade of a response, and what only some sources know (worked solutions, levels, a rule that checks a step). No
file outside `problems` and `environment` names a source.

A source is found by the value of `problems.source` (`--source`):

* a name of `BUILT_IN` or of the entry-point group `alphazero_llm_trainer.sources`;
* such a name, a colon and what it should open (`reasoning-gym:chain_sum`, `hub:OWNER/NAME`);
* a file of rows (`FILE.jsonl`, `FILE.parquet`), a folder or a pattern of them;
* Python code of your own (`file.py:NAME`, `package.module:NAME`).
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import hashlib
import importlib
import importlib.util
import inspect
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from .. import answers
from ..config.load import Config
from ..config.objects import load_object, look_in
from ..config.sections import ProblemsConfig
from ..engine.protocol import Teacher
from ..errors import ConfigError, DataError
from ..types import Problem, Task
from .calculator import equations
from .grading import GRADERS, Grade, Grader, guess_grader, is_no_answer
from .prompts import SYSTEM_PROMPTS
from .rows import ROW_FILES, Columns, as_task, check_text, files_at, row_format

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "arena", "test")
SHARES = {"test": 15, "validation": 5, "arena": 5, "train": 75}  # of 100: what generated problems are divided by
GROUP = "alphazero_llm_trainer.sources"
SHOWN = 60  # letters of a question in a message

# name -> module and class. Each is one file, and one line here.
BUILT_IN = {
    "embedded": "embedded_source:Embedded",
    "gsm8k": "gsm8k:Gsm8k",
    "math": "math:Math",
    "hotpotqa": "hotpotqa:HotpotQa",
    "numbers": "numbers:Numbers",
    "reasoning-gym": "gym:ReasoningGym",
    "gsm-symbolic": "gym:GsmSymbolic",
    "hub": "files:HubRows",
    "file": "files:FileRows",
}


READ = ("question_column", "answer_column", "solution_column", "grade")


class Source(ABC):
    """Problems of one kind. A subclass gives `load`; the other methods have defaults that fit numbers as answers.

    Attributes:
        name: its address, as `problems.source` says it and `Problem.source` keeps it.
        opens: something may follow its name and a colon.
        grader: how answers are found and compared, a name of `grading.GRADERS`.
        system_prompt: what a chat model is told before a problem, None for nothing.
        endless: a split has as many tasks as are asked for.
        levels: difficulty levels that `problems.levels` may choose from; () where there are none.
        reads: keys of `problems` that say how its rows are read, of `READ`, and "path" where `problems.path` may have them.
        hold_outs: what `problems.hold_out` may keep out of training: no two splits share it.
        demonstration_share: share of a training batch that replays worked solutions unless the configuration says.
        gold_free: its grades need no gold answer.
        prompt_tokens: tokens of a long prompt with its system prompt and chat template, for the memory plan.
    """

    name: str = ""
    opens: bool = False
    grader: str = "numbers"
    endless: bool = False
    levels: tuple[int, ...] = ()
    reads: tuple[str, ...] = ()
    hold_outs: tuple[str, ...] = ("questions",)
    demonstration_share: float = 0.0
    gold_free: bool = False
    prompt_tokens: int = 320
    system_prompt: str | None = None

    @classmethod
    def open(cls, rest: str, problems: ProblemsConfig, path: str | None) -> Source:
        """The source of an address.

        Args:
            rest: what follows the name and its colon; "" where nothing does.
            problems: the configuration's section: levels, columns, rules.
            path: `problems.path`, a folder with rows.
        """
        return cls()

    @abstractmethod
    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """At most `count` tasks of a split from its number `start` on; fewer, or none, where the split ends before that.

        Splits are disjoint and a task is the same on every call.

        Raises:
            DataError: rows are missing or broken; one sentence naming file, line and fix.
            ConfigError: the source has no such split.
        """

    # -- responses ---------------------------------------------------------------------------------------------------

    @property
    def reader(self) -> Grader:
        """The rule's object: answers, votes and plain grades."""
        return GRADERS[self.grader]

    def final_answer(self, response: str, strict: bool = False) -> str | None:
        r"""The answer that `response` states, as written, or None; here it is decided for training, search and evaluation.

        strict: a limit cut the response, and only what marks an answer counts: a `####` line or a `\boxed{}`.
        """
        return self.reader.final_answer(response, strict)

    def vote_key(self, response: str) -> str:
        """What responses with the same answer share, for majority votes; "" where there is no answer."""
        return self.reader.vote_key(response)

    def grade_many(self, pairs: Sequence[tuple[str, Task]], strict: bool = False) -> list[Grade]:
        """The grades of responses to tasks, in order."""
        return self.reader.grade_many([(response, task.gold) for response, task in pairs], strict)

    def grade(self, response: str, task: Task, strict: bool = False) -> Grade:
        """The grade of one response: a verdict and a score in [0, 1]."""
        return self.grade_many([(response, task)], strict)[0]

    async def grade_all(self, pairs: Sequence[tuple[str, Task]], strict: bool = False) -> list[Grade]:
        """`grade_many` without holding up the event loop."""
        if self.reader.waits:
            return await asyncio.to_thread(self.grade_many, pairs, strict)
        return self.grade_many(pairs, strict)

    async def grade_async(self, response: str, task: Task, strict: bool = False) -> Grade:
        """`grade` without holding up the event loop."""
        return (await self.grade_all([(response, task)], strict))[0]

    # -- what some sources know --------------------------------------------------------------------------------------

    def check_step(self, problem: Problem, steps: Sequence[str]) -> bool | None:
        """Whether the last of `steps` is right as far as a rule can tell without gold; None where it has nothing to check. By
        default its equations are true."""
        found = equations(steps[-1])
        return all(found) if found else None

    def spoiled(self, step: str, problem: Problem, rng: Random, count: int) -> list[str]:
        """At most `count` wrong steps that could stand in a right one's place; none by default."""
        return []

    def scripted_teacher(self, error_rate: float) -> Teacher | None:
        """A teacher that runs offline by the source's own rules and slips at a rate of `error_rate`, or None."""
        return None

    def vocabulary_texts(self) -> Iterable[str]:
        """Texts with every word of the source, where a small vocabulary covers it; () where none does."""
        return ()


class TaskList(Source):
    """Tasks in memory as a source: `Source`'s splits by a stable hash of each question.

    A tenth of the questions is test, a twentieth validation and another one arena, the rest is train; of fewer than 40
    tasks, the shares are the same to rounding.

    Args:
        tasks: the tasks, or a list for each split.
        name: the source's name.
        grader: one of `grading.GRADERS`; None takes the one that fits the gold answers.
        system_prompt: what a chat model is told; None takes the rule's.
        read: how its rows were read, in words, for the line that says which rule grades them.
    """

    def __init__(
        self,
        tasks: Sequence[Task] | dict[str, Sequence[Task]],
        name: str,
        grader: str | None = None,
        system_prompt: str | None = None,
        read: str = "",
    ) -> None:
        given = once(tasks if isinstance(tasks, dict) else {"": tasks}, name)
        unknown = [split for split in given if split not in (*SPLITS, "")]
        if unknown:
            raise ConfigError(f"{name} has the split {unknown[0]!r}: the splits are {', '.join(SPLITS)}")
        if not isinstance(tasks, dict):
            given = by_hash(given[""])
        golds = [task.gold for of_split in given.values() for task in of_split]
        why = "problems.grade says so"
        if grader is None:
            grader, why = guess_grader(golds)
        else:
            check_golds(golds, grader, name)
        self.name, self.grader = name, grader
        self.system_prompt = SYSTEM_PROMPTS[grader] if system_prompt is None else system_prompt
        self.tasks = {split: [own(task, name) for task in given.get(split, ())] for split in SPLITS}
        check_tasks([task for tasks in self.tasks.values() for task in tasks], name)
        if golds:
            sizes = ", ".join(f"{split} {len(tasks):,}" for split, tasks in self.tasks.items() if tasks)
            told = f"{read}; " if read else ""
            log.warning("%s: %s; %sgraded as %s, since %s", name, sizes, told, grader, why)

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        """See `Source.load`."""
        return self.tasks[split][start : start + count]


def check_golds(golds: Sequence[str], grader: str, name: str) -> None:
    """Raise DataError for a gold answer that the rule which the user named can't grade."""
    unfit = {
        "numbers": lambda gold: answers.gold_number(gold) is None,
        "choice": lambda gold: answers.letter(gold) is None,
    }
    if grader in unfit:
        wrong = next((gold for gold in golds if gold.strip() and unfit[grader](gold)), None)
        if wrong is not None:
            what = "number" if grader == "numbers" else "letter of a choice"
            raise DataError(
                f"problems.grade is {grader!r} and {name} has the gold answer {wrong[:SHOWN]!r}, which is no {what}: mend it,"
                " or leave problems.grade out"
            )


def once(found: Mapping[str, Sequence[Task]], name: str) -> dict[str, list[Task]]:
    """Tasks by split without those whose question stands in `found` twice.

    What stands in several splits stays in the one that is furthest from training. One line says how many were left out.
    Raises DataError where a question has two gold answers.
    """
    kept: dict[str, list[Task]] = {split: [] for split in found}
    gold: dict[str, str] = {}  # by question
    furthest = {split: at for at, split in enumerate(("test", "validation", "arena", "train"))}
    for split in sorted(found, key=lambda split: furthest.get(split, len(furthest))):
        for task in found[split]:
            question = task.problem.question
            if question not in gold:
                gold[question] = task.gold
                kept[split].append(task)
            elif gold[question] != task.gold and not answers.equal(gold[question], task.gold):
                raise DataError(
                    f"{name} asks {question[:SHOWN]!r} twice, with the answer {gold[question][:SHOWN]!r} and with"
                    f" {task.gold[:SHOWN]!r}: keep the right one"
                )
    left_out = sum(map(len, found.values())) - sum(map(len, kept.values()))
    if left_out:
        log.warning("%s: %s of its rows repeat others, and were left out", name, f"{left_out:,}")
    return kept


def own(task: Task, name: str) -> Task:
    """The task with this source's name in its problem."""
    return task if task.problem.source == name else replace(task, problem=replace(task.problem, source=name))


def check_tasks(tasks: Sequence[Task], name: str) -> None:
    """Raise DataError for duplicate ids, empty questions and a gold answer of NaN.

    Other gold answers are looked at by who needs them (`check_gold`).
    """
    seen: set[str] = set()
    for task in tasks:
        if task.problem.id in seen:
            raise DataError(
                f"source {name} has two tasks with the id {task.problem.id!r}, one asks"
                f" {task.problem.question[:SHOWN]!r}: drop one or give each an id of its own"
            )
        seen.add(task.problem.id)
        check_text(task.problem.question, f"source {name}, task {task.problem.id!r}")
        if is_no_answer(task.gold):
            raise DataError(
                f"source {name}, task {task.problem.id!r}, has the gold answer {task.gold!r}: write it or drop it"
            )


def by_hash(tasks: Sequence[Task]) -> dict[str, list[Task]]:
    """Tasks by split: a stable order of their questions' hashes is cut at fixed shares."""
    ordered = sorted(tasks, key=lambda task: hashlib.sha256(task.problem.question.encode()).digest())
    total = len(ordered)
    test, small = round(total * 0.1), round(total * 0.05)
    cuts = [0, test, test + small, test + 2 * small, total]
    named = zip(("test", "validation", "arena", "train"), pairwise(cuts), strict=True)
    kept = {id(task): split for split, (low, high) in named for task in ordered[low:high]}
    return {split: [task for task in tasks if kept[id(task)] == split] for split in SPLITS}


def split_of(text: str) -> str:
    """The split that a stable hash of `text` names, in the shares of `SHARES`: the same on every machine."""
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100
    for split, share in SHARES.items():
        if place < share:
            return split
        place -= share
    raise AssertionError("the shares add up to 100")


# -- finding one -------------------------------------------------------------------------------------------------------


class UnknownSourceError(ConfigError):
    """An address is of no form that is known."""


_held: dict[str, Source] = {}  # sources that Python code gave, by name
_open: dict[str, Source] = {}  # the newest source of each name: what a problem's `source` refers to


def open_source(config: Config, address: str | None = None) -> Source:
    """The source that `address` (None: `problems.source`) names, set up as the configuration says.

    Raises ConfigError or DataError with one sentence where there is none, or it can't be opened.
    """
    problems = config.problems
    if address is not None and address != problems.source:
        problems = problems.model_copy(update={"source": address})
    source = open_problems(problems, config.problems.path)
    check_reads(problems, config.problems.path, [source])
    return source


def check_reads(problems: ProblemsConfig, path: str | None, sources: Sequence[Source]) -> None:
    """Raise ConfigError where a key, or `problems.path`, says how rows are read and none of the sources reads it."""
    asked = [(f"problems.{name}", name, getattr(problems, name), "a file or of the hub") for name in READ]
    asked.append(("problems.path", "path", path, "gsm8k, math or hotpotqa"))
    for key, name, value, whose in asked:
        if value is not None and not any(name in source.reads for source in sources):
            raise ConfigError(
                f"{key} is {value!r}, which is for rows of {whose}, and source"
                f" {', '.join(source.name for source in sources)} has none of these: leave it out, or name such a source"
            )


def open_one_of(config: Config, address: str) -> Source:
    """One of several sources: what it doesn't know of `problems.levels` and `problems.hold_out` is for the others."""
    plain = config.problems.model_copy(update={"source": address, "levels": None, "hold_out": "questions"})
    source, wanted = open_problems(plain, config.problems.path), config.problems
    known: dict[str, Any] = {"levels": wanted.levels if source.levels else None}
    if wanted.hold_out in source.hold_outs:
        known["hold_out"] = wanted.hold_out
    return open_problems(plain.model_copy(update=known), config.problems.path)


def open_problems(problems: ProblemsConfig, path: str | None) -> Source:
    """See `open_source`: with the section `problems` and `problems.path` alone."""
    return register(_opened(problems, path, changed(problems.source)))


def changed(address: str) -> int | None:
    """When the file that an address names was written, in nanoseconds; None where it names none."""
    for part in (address, address.rpartition(":")[0], address.partition(":")[2]):
        place = os.path.expanduser(part)
        files = [] if not place or place in BUILT_IN else [Path(place), *files_at(place)]
        times = [file.stat().st_mtime_ns for file in files if file.is_file()]
        if times:
            return max(times)
    return None


@lru_cache(maxsize=16)
def _opened(problems: ProblemsConfig, path: str | None, written: int | None) -> Source:
    """A run asks for its source in many places; its rows are read, and the user's code is run, once."""
    source = _find(problems, path)
    if problems.levels is not None and not source.levels:
        raise ConfigError(
            f"problems.levels is {list(problems.levels)}, but {source.name} has no levels to choose: leave it out"
        )
    if problems.hold_out not in source.hold_outs:
        raise ConfigError(
            f"problems.hold_out is {problems.hold_out!r} and source {source.name} knows"
            f" {' and '.join(source.hold_outs)}: use one of these"
        )
    return source


def register(source: Source) -> Source:
    """Make `source` the one that its problems refer to by name."""
    _open[source.name] = source
    return source


def hold(source: Source) -> str:
    """Keep a source that exists in Python alone, and return the name by which `problems.source` finds it in this process.

    Raises ConfigError where its name is another source's address.
    """
    if not source.name or source.name in names():
        raise ConfigError(f"a source of your own has the name {source.name!r}: give it one that no other source has")
    _held[source.name] = register(source)
    _opened.cache_clear()
    return source.name


def source_of(problem: Problem) -> Source:
    """The source that a problem came from. One that was never opened in this process is opened as it is by default."""
    known = _open.get(problem.source)
    if known is None:
        try:
            known = _find(ProblemsConfig.model_validate({"source": problem.source}), None)
        except UnknownSourceError:  # a question of the user's own
            known = TaskList([], problem.source, "any", "")
        register(known)
    return known


def names() -> dict[str, str]:
    """Every known name and its `module:Class`: the built-in ones, and those that installed packages declare."""
    own_module = __name__.rpartition(".")[0]
    built_in = {name: f"{own_module}.{place}" for name, place in BUILT_IN.items()}
    return built_in | {entry.name: entry.value for entry in metadata.entry_points(group=GROUP)}


def load_class(name: str) -> Any:
    """What a known name stands for: a subclass of `Source`, or whatever `from_object` takes."""
    module, _, attribute = names()[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(f"problems.source is {name!r}, which needs a package that is missing ({error})") from error


def _find(problems: ProblemsConfig, path: str | None) -> Source:
    address = problems.source
    if not address:
        raise UnknownSourceError("problems.source is empty: name one")
    if address in _held:
        return _held[address]
    name, _, rest = address.partition(":")
    if name in names():
        found = load_class(name)
        if isinstance(found, type) and issubclass(found, Source):
            if rest and not found.opens:
                raise ConfigError(f"problems.source is {address!r}: write {name} alone")
            return found.open(rest, problems, path)
        return from_object(found, address, problems)
    if row_format(address) or glob.has_magic(address) or Path(os.path.expanduser(address)).is_dir():
        return load_class("file").open(address, problems, path)
    if name.endswith(".py") and not rest:
        raise ConfigError(
            f"problems.source is {address!r} without a name: write {name}:NAME, a list of tasks, a function that returns"
            " one, or a Source"
        )
    if rest and (name.endswith(".py") or is_module(name)):
        return from_object(load_object(name, rest, "problems.source"), address, problems)
    known = ", ".join(sorted(set(names()) - {"file", "hub"}))
    raise UnknownSourceError(
        f"problems.source is {address!r}: choose one of {known}, a file or a folder of rows ({', '.join(ROW_FILES)}),"
        " hub:OWNER/NAME, file.py:NAME or package.module:NAME"
    )


def is_module(name: str) -> bool:
    """Whether this is meant as a module: `package.module`, or the name of one that can be found."""
    parts = name.split(".")
    look_in(Path.cwd())
    return all(map(str.isidentifier, parts)) and (len(parts) > 1 or importlib.util.find_spec(name) is not None)


def from_object(found: Any, address: str, problems: ProblemsConfig) -> Source:
    """A source out of the user's object: a `Source` or its class, tasks, tasks by split, or a function that returns tasks.

    A function with a parameter `split` is called once for each split; what it raises as ValueError names a split that
    it doesn't have.
    """
    if isinstance(found, type) and issubclass(found, Source):
        found = found()
    if isinstance(found, Source):
        found.name = found.name or address
        return found
    if callable(found):
        found = call_for_tasks(found)
    if isinstance(found, dict):
        given: Any = {split: as_tasks(tasks, address) for split, tasks in found.items()}
    else:
        given = as_tasks(found, address)
    tasks = TaskList(given, address, problems.grade, problems.system_prompt)
    tasks.reads = ("grade",)
    return tasks


def call_for_tasks(function: Callable[..., Any]) -> Any:
    """What the user's function returns, asked split by split where it takes one: none for one that it raises ValueError for."""
    if "split" not in inspect.signature(function).parameters:
        return function()
    found: dict[str, Any] = {}
    for split in SPLITS:
        with contextlib.suppress(ValueError):
            found[split] = function(split=split)
    return found


def as_tasks(given: Any, address: str) -> list[Task]:
    """Tasks out of tasks, or out of (question, answer, solution) and mappings with these; the solution may be missing."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(
            f"source {address} is a {type(given).__name__}: give a list of tasks, or a function that does"
        )
    return [row if isinstance(row, Task) else as_row(row, number, address) for number, row in enumerate(given)]


def as_row(given: Any, number: int, address: str) -> Task:
    """A (question, answer, solution), or a mapping with these, as a task."""
    row = dict(zip(Columns._fields, given[:3], strict=False)) if isinstance(given, tuple | list) else given
    if not isinstance(row, Mapping):
        raise DataError(f"source {address} has no task at number {number} but {repr(row)[:SHOWN]}: give a Task")
    return as_task((row, f"source {address}, task {number}"), Columns(), address)
