"""Saved trees for pages: where a run's records are, and what a page must know about each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.sections import SearchConfig
from ..errors import ConfigError, DataError
from ..files import parse_json, read_object
from ..mcts.choose import Text, choose, most_visited
from ..mcts.journal import read, read_shards, shard_paths
from ..mcts.record import Record, check
from ..mcts.select import constant
from ..mcts.tree import Tree
from ..viewer.record import choice_of, pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EMBEDDED = Path(__file__).parent.parent / "assets" / "student"


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from: a journal file, a folder of shards, or one search's JSON; `home` holds its card."""

    path: Path
    kind: str
    home: Path

    @property
    def is_run(self) -> bool:
        """Whether it is all that its folder holds, so that its page is the folder's."""
        return self.kind == "shards" or self.path.name == "journal.jsonl"

    @property
    def title(self) -> str:
        """What its page is called."""
        return f"{self.home.resolve().name}: trees" if self.is_run else self.path.name

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The records, one in memory at a time; a half-written last line is left out."""
        if self.kind == "search":
            yield _one_search(self.path)
        else:
            yield from read_shards(self.path) if self.kind == "shards" else read(self.path)


def find_source(path: Path) -> Source:
    """What `path` is. Raises DataError where it holds no journal."""
    if path.is_dir():
        if (path / "journal.jsonl").is_file():
            return Source(path / "journal.jsonl", "journal", path)
        if shard_paths(path):
            return Source(path, "shards", path)
        below = sorted(
            {file.parent for name in ("journal.jsonl", "shard-00000.jsonl") for file in path.glob(f"*/**/{name}")}
        )
        fix = f"name one of those below it, such as {below[0]}" if below else "name a run folder or a journal"
        raise DataError(f"{path} holds no journal.jsonl and no shard-*.jsonl: {fix}")
    if not path.is_file():
        raise DataError(f"{path} is not there: name a run folder of `train` or `sample`, a journal, or a search's JSON")
    return Source(path, "search" if path.suffix == ".json" else "journal", path.parent)


def _one_search(path: Path) -> dict[str, Any]:
    """What `search --json` printed, as a record."""
    try:
        raw = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not readable JSON: write it with `search --json > {path.name}`") from error
    if not isinstance(raw, dict) or "tree" not in raw:
        raise DataError(f"{path} holds no tree: write it with `search --json > {path.name}`")
    record = {"key": path.stem, **raw}
    try:
        check(Record, record)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    return record


class TreeReader:
    """Adds to records what the page can't know: how the search chose and explored, and how tokens read.

    The card beside the journal (run.json, manifest.json) tells the settings and the student; a record's own word wins.
    """

    def __init__(self, source: Source, tokenizer: Path | None) -> None:
        card = _card(source.home)
        config = card.get("config") or {}
        self.settings = _search_settings(config.get("search") or {}, source.home)
        self.choose: str = "vote" if self.settings is None else self.settings.choose
        if self.settings is not None and self.settings.rollout == "none":
            self.choose = "end"
        self.tokenizer = _tokenizer(source, config, card, tokenizer)
        self.sure = self.tokenizer is not None
        self._pieces: dict[int, str] = {}

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        tree = Tree.from_dict(record.get("tree") or {}, checked="tree" in record)
        found: dict[str, Any] = {}
        if self.settings is not None:
            rule = self.settings.rule
            found["search"] = {"rule": rule, "exploration": constant(rule, self.settings.exploration)}
        if not choice_of(record).keys() & {"chosen", "response"}:
            choice = choose(tree, self.choose, most_visited(tree), self._text(tree))
            if choice is not None:
                found |= {
                    "chosen": choice.node,
                    "answer": choice.answer,
                    "why": choice.why,
                    "response": choice.response,
                }
        if not self.sure:
            # A record without a card may well be the embedded student's: its tokens say so.
            self.tokenizer, self.sure = _embedded_if_it_reads(tree), True
        if self.tokenizer is not None:
            found["pieces"] = pieces(record, partial(self.tokenizer.decode, skip_special_tokens=False), self._pieces)
        return {**found, **record}

    def _text(self, tree: Tree) -> Text | None:
        tokenizer = self.tokenizer
        if tokenizer is None or not tree.rollouts:
            return None
        return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)


def _card(home: Path) -> dict[str, Any]:
    """What a run's folder says about itself; {} where it is no run's."""
    file = next((home / name for name in ("run.json", "manifest.json") if (home / name).is_file()), None)
    try:
        return {} if file is None else read_object(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not a run's card ({error}): restore it, or copy the journal elsewhere") from error


def _search_settings(stored: Mapping[str, Any], home: Path) -> SearchConfig | None:
    """`search.*` of a card as far as this version knows it; None where there is none."""
    known = {name: value for name, value in stored.items() if name in SearchConfig.model_fields}
    try:
        return SearchConfig.model_validate(known) if known else None
    except ValueError as error:
        raise DataError(f"the configuration in {home} is not this version's: copy the journal elsewhere") from error


def _tokenizer(
    source: Source, config: Mapping[str, Any], card: Mapping[str, Any], named: Path | None
) -> Tokenizer | None:
    """The student's tokenizer where a file of it is at hand: named, in the run's folder, or the embedded student's."""
    if named is not None:
        file = named / "tokenizer.json" if named.is_dir() else named
        if not file.is_file():
            raise ConfigError(f"--tokenizer is {named}, which holds no tokenizer.json: name a student folder")
    else:
        student = (config.get("train") or {}).get("student") or config.get("student")
        embedded = "embedded" in (card.get("student"), student, (card.get("policy") or {}).get("name"))
        places = [source.home / "student", *([Path(student)] if isinstance(student, str) else [])]
        places += [EMBEDDED] if embedded else []
        file = next((place / "tokenizer.json" for place in places if (place / "tokenizer.json").is_file()), Path())
        if not file.is_file():
            return None
    return _load(file)


def _load(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file))


def _embedded_if_it_reads(tree: Tree) -> Tokenizer | None:
    """The embedded student's tokenizer where every node's tokens read as its text."""
    tokenizer = _load(EMBEDDED / "tokenizer.json")
    nodes = zip(tree.token_ids, tree.text, strict=True)
    return (
        tokenizer if all(tokenizer.decode(list(ids), skip_special_tokens=True) == text for ids, text in nodes) else None
    )


def chosen_records(source: Source, question: str) -> list[dict[str, Any]]:
    """The records of one question, by key or by its id. Raises DataError where there is none."""
    found: list[dict[str, Any]] = []
    known: list[str] = []
    for record in source:
        problem = record.get("problem") or {}
        if question in (record.get("key"), problem.get("id")):
            found.append(record)
        elif len(known) < 3:
            known.append(str(problem.get("id", record.get("key"))))
    if not found:
        have = f"it has {', '.join(known)}, ..." if known else "it is empty"
        raise DataError(f"--question is {question!r}, which {source.path} has no tree of ({have}): name an id or a key")
    return found
