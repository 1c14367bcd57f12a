"""How a source is opened by its name or address, and which source a problem came from. No file
outside `problems` and `environment` names a source.

An address is the value of `problems.source` (`--source`):

* a name of `BUILT_IN` or of the entry-point group `alphazero_llm_trainer.sources`, some with a
  colon and what to open (`reasoning-gym:chain_sum`, `hub:OWNER/NAME`);
* a file of rows (`FILE.jsonl`, `FILE.parquet`), a folder or a pattern of them;
* an object in a Python file of your own (`file.py:NAME`).
"""

from __future__ import annotations

import glob
import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ..config.load import Config, read_problems
from ..config.objects import load_object
from ..config.refusals import refuse_conflicts
from ..config.sections import ProblemsConfig
from ..errors import ConfigError, DataError, suggest_nearest
from ..types import Problem, Task
from .own_world import OwnWorlds
from .row_columns import RowColumns
from .row_files import ROW_FILES, files_at, row_format, split_at
from .source import Source
from .task_list import QUESTION_SHOWN, ROW_KEYS, TaskList, from_rows

log = logging.getLogger(__name__)

GROUP = "alphazero_llm_trainer.sources"

# name -> module and class. Each is one file, and one line here.
BUILT_IN = {
    "embedded": "embedded_source:Embedded",
    "gsm8k": "gsm8k:Gsm8k",
    "math": "math:Math",
    "hotpotqa": "hotpotqa:HotpotQa",
    "numbers": "numbers:Numbers",
    "pancake": "pancake:Pancake",
    "hidden": "hidden:Hidden",
    "calc": "calc:Calc",
    "reasoning-gym": "gym:ReasoningGym",
    "hub": "row_files:HubRows",
    "file": "row_files:FileRows",
}
KEYS = (*ROW_KEYS, "path", "levels")  # of `problems`, that some sources read


# What is in no reward of a world, nor proposes turns there, unless a user asks for it.
WITHOUT: dict[str, dict[str, Any]] = {
    "rewards": {"use_student_model": False},
    "teachers": {"tier": "none"},
    "train": {"reward": None},
}


class UnknownSourceError(ConfigError):
    """An address is of no form that is known."""


_held_sources = dict[str, Source]()  # sources that Python code made, by name
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
    return open_problems(config.problems.with_values(source=address))


def open_problems(problems: ProblemsConfig) -> Source:
    """The source of a section `problems`, whatever it reads of it."""
    return register_source(_open_cached(problems, changed_at(problems.source)))


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


def changed_at(address: str) -> int:
    """When the newest file that an address names was written, in nanoseconds; 0 where it names
    none.
    """
    place = os.path.expanduser(address.rpartition(":")[0] if ".py:" in address else address)
    files = [Path(place), *files_at(place)]
    return max(file.stat().st_mtime_ns if file.is_file() else 0 for file in files)


@lru_cache(maxsize=16)
def _open_cached(problems: ProblemsConfig, written: int) -> Source:
    """A run asks for its source in many places; its rows are read, and the user's code is run,
    once.
    """
    address = problems.source
    if address in _held_sources:
        return _held_sources[address]
    name, _, rest = address.partition(":")
    known = source_names()
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
        "hub:OWNER/NAME, or file.py:NAME (a list of tasks, a function that returns one, or a "
        "Source)"
    )
    raise UnknownSourceError(
        f"problems.source is {address!r}: {suggest_nearest(address, usual, fix)}"
    )


def source_names() -> dict[str, metadata.EntryPoint]:
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
    if isinstance(value, type) and hasattr(value, "reset"):
        return OwnWorlds(value, problems)
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
            row = dict(zip(RowColumns._fields, row, strict=False))  # noqa: PLW2901
        if not isinstance(row, Mapping):
            raise DataError(
                f"source {address} has {repr(row)[:QUESTION_SHOWN]} as task {number}: give "
                "(question, answer)"
            )
        placed = (row, f"source {address}, task {number}")
        rows.append((split_at(placed), placed))
    return from_rows(rows, problems)


def register_source(source: Source) -> Source:
    """Make `source` the one that its problems refer to by name."""
    _newest[source.name] = source
    return source


def hold_source(source: Source) -> str:
    """Keep a source that exists in Python alone; returns the name that `problems.source` opens it
    by in this process.

    Raises ConfigError where its name is another source's address.
    """
    if not source.name or source.name in source_names():
        raise ConfigError(
            f"a source of your own has the name {source.name!r}: "
            "give it one that no other source has"
        )
    _held_sources[source.name] = register_source(source)
    _open_cached.cache_clear()
    return source.name


def with_worlds(
    config: Config, command: str, measured: bool = False, method: Any = None, *sources: Source
) -> Config:
    """`config` as `command` plays the sources' worlds (none: the configured one), where one has
    any: without perplexity (PRE), which a line tells, and without teachers.

    Raises ConfigError for what worlds can't have, and for a user's own choice of these.

    Args:
        measured: the command has PRE in rewards where `config` says so.
        method: what learns from the searches, if anything.
    """
    source = next((one for one in sources or (open_source(config),) if one.worlds), None)
    if source is None:
        unread = "and the source has no tools: leave it out"
        config.refuse(dict.fromkeys(("search.tool_seconds", "search.tool_tokens"), unread))
        return config
    config.refuse(
        {"rewards.pre_weight": f"and worlds reward the turns of source {source.name}: leave it out"}
    )
    usual = {
        name: section
        for name, section in WITHOUT.items()
        if not config.own & {f"{name}.{key}" for key in section}
    }
    settled = config.with_values(**usual)
    check_worlds(settled, source, command=command, method=method)
    if measured and config.rewards.measures:
        log.warning("worlds reward the turns of source %s: without perplexity (PRE)", source.name)
    return settled


def check_worlds(config: Iterable[tuple[str, Any]], source: Source, **facts: Any) -> None:
    """Raise ConfigError for what a source with worlds can't have."""
    if source.worlds:
        refuse_conflicts(config, "worlds", "configuration", source=source, **facts)


def is_gradable(task: Task) -> bool:
    """Whether responses to a task can be graded: it has a gold answer, or its source needs none."""
    return bool(task.gold.strip()) or source_of(task.problem).gold_free


def source_of(problem: Problem) -> Source:
    """The source that a problem came from. One that was never opened in this process is opened as
    it is by default.
    """
    if problem.source not in _newest:
        try:
            source = _open_cached(read_problems(source=problem.source), 0)
        except UnknownSourceError:  # a question of the user's own
            source = TaskList([], problem.source, "any", "")
        _newest[problem.source] = source
    return _newest[problem.source]


def reading_of(problem: Problem) -> Callable[[str], str | None]:
    """What responses to a problem answer, for votes: as its source reads them."""
    source = source_of(problem)
    return lambda response: source.vote_key(response) or None
