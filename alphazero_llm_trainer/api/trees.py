"""`read_trees`: saved search trees as objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..report.html import frame_page
from ..report.trees import TreeReader, records_of
from ..tree.arena import Tree
from ..tree.extract import Trajectory, trajectories
from ..tree.journal import journal_of
from ..types import Problem
from ..viewer.page import tree_page


@dataclass(frozen=True, slots=True)
class SavedTree:
    """A finished search of a journal: its key, the problem, the tree, and the whole journal
    line.
    """

    key: str
    problem: Problem
    tree: Tree
    record: Mapping[str, Any] = field(repr=False)
    path: Path | None = None  # of the journal

    @property
    def paths(self) -> list[Trajectory]:
        """The responses that the search finished, root to leaf, with tokens, rewards and node
        numbers.
        """
        return trajectories(self.tree)

    @property
    def cost(self) -> Mapping[str, Any]:
        """Tokens, calls and seconds of the search."""
        return self.record["cost"]

    def _repr_html_(self) -> str:
        """The tree in the viewer, in a notebook: with its choice, and tokens as text where the
        tokenizer is there.
        """
        record = dict(self.record)
        return frame_page(
            tree_page(record if self.path is None else reader_of(self.path)(record), title=self.key)
        )


# What adds to a journal's records what the viewer shows beside the tree.
reader_of = lru_cache(maxsize=4)(TreeReader)


def read_trees(path: str | Path) -> Iterator[SavedTree]:
    """The trees of a run folder, of a folder of `sample`, of a journal, or of what `search --json`
    printed, one by one.

    Raises DataError where there are none.
    """
    journal = journal_of(Path(path))
    for record in records_of(journal):
        problem = record.get("problem", {})
        question = problem.get("question", record.get("question", ""))
        named = Problem(problem.get("id", record["key"]), question, problem.get("source", ""))
        yield SavedTree(record["key"], named, Tree.from_dict(record["tree"]), record, journal)
