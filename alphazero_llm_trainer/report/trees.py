"""Saved trees for pages: where a run's records are, and what a page must know about each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.sections import SearchConfig
from ..errors import DataError
from ..files import read_object
from ..mcts.choose import choose, most_visited
from ..mcts.select import constant, under_verifier
from ..problems.step_checks import Calculator
from ..tree.arena import Tree
from ..tree.journal import JOURNAL, read
from ..types import Facts, JsonObject
from ..viewer.record import choice_of, token_pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EMBEDDED = Path(__file__).parent.parent / "assets" / "student"


def records_of(path: Path) -> Iterator[JsonObject]:
    """The records of a journal, one in memory at a time, or the one of a search's JSON.

    A half-written last line is left out.
    """
    if path.suffix != ".json":
        yield from read(path)
        return
    try:
        yield {"key": path.stem, **read_object(path)}
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is no tree ({error}): write it with `search --json > {path.name}`"
        ) from error


def title_of(path: Path) -> str:
    """What the page of a journal, or of a search's JSON, is called."""
    return f"{path.resolve().parent.name}: trees" if path.name == JOURNAL else path.name


class TreeReader:
    """Adds to records what the page can't know: how the search chose and explored, and how tokens
    read.

    The card beside the journal (run.json, manifest.json) has the settings and the student; a
    record's own word wins.
    """

    def __init__(self, path: Path) -> None:
        home = path.parent
        card = load_json(home / "run.json") or load_json(home / "manifest.json") or {}
        config = card.get("config", {})
        stored, fields = config.get("search", {}), SearchConfig.model_fields
        known = {name: value for name, value in stored.items() if name in fields}
        try:
            self.settings = SearchConfig.model_validate(known) if known else None
        except ValueError as error:
            raise DataError(
                f"the configuration in {home} is not this version's: copy the journal elsewhere"
            ) from error
        self.judged = config.get("train", {}).get("groups") == "verified"
        self.tokenizer = _find_tokenizer(home, config, card)
        self._pieces: dict[int, str] = {}

    def __call__(self, record: JsonObject) -> JsonObject:
        """The record with what it lacks."""
        tree = Tree.from_dict(record.get("tree"))
        settings, tokenizer, text = self.settings, self.tokenizer, None
        more: dict[str, Any] = {}
        if settings is not None:
            selector = settings.selector(self.judged)
            rule = under_verifier(selector) if self.judged else selector
            more["search"] = {"rule": rule, "exploration": constant(selector, settings.exploration)}
            if self.judged:
                more["search"]["verifier"] = Calculator().name
        if tokenizer is not None:
            decode = partial(tokenizer.decode, skip_special_tokens=False)
            more["pieces"] = token_pieces(record, decode, self._pieces)
            if tree.rollouts:
                text = partial(tokenizer.decode, skip_special_tokens=True)
        if not choice_of(record).keys() & {"chosen", "response"}:
            rule = "vote" if settings is None else settings.votes
            choice = choose(tree, rule, most_visited(tree), text)
            if choice is not None:
                more |= {
                    "chosen": choice.node,
                    "answer": choice.answer,
                    "why": choice.why,
                    "response": choice.response,
                }
        return {**more, **record}


def load_json(path: Path) -> JsonObject | None:
    """A JSON object, or None where there is no such file. Raises DataError for anything else."""
    try:
        return read_object(path) if path.exists() else None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is not a readable JSON object: remove it, or name another folder"
        ) from error


def _find_tokenizer(home: Path, config: Facts, card: Facts) -> Tokenizer | None:
    """The student's tokenizer where a file of it is at hand: in the run's folder, in the one that
    it started from, or the embedded student's.
    """
    student = config.get("train", {}).get("student") or config.get("student")
    places = [home / "student", *([Path(student)] if isinstance(student, str) else [])]
    if "embedded" in (card.get("student"), student, (card.get("policy") or {}).get("name")):
        places.append(EMBEDDED)
    for file in (place / "tokenizer.json" for place in places):
        if file.is_file():
            from tokenizers import Tokenizer

            return Tokenizer.from_file(str(file))
    return None


def chosen_records(path: Path, question: str) -> list[JsonObject]:
    """The records of one question, by key, by its id or by its number on the page. Raises DataError
    where there is none.
    """
    records = [
        record
        for number, record in enumerate(records_of(path), 1)
        if question in (record["key"], (record.get("problem") or {}).get("id"), str(number))
    ]
    if not records:
        raise DataError(
            f"--question is {question!r}, which {path} has no tree of: name an id, a key or a "
            "number of its page"
        )
    return records
