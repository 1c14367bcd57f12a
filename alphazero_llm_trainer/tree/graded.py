"""A finished training search: its task, its tree, and its line of the journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import DataError
from ..types import Cost, Facts, JsonObject, Problem, Task, TokenIds
from .arena import Tree
from .extract import Trajectory, trajectories

FAILED = "failed: "  # how `GradedTree.ended_by` of a question without a tree begins
FAILED_REWARD = "failed reward: "  # and of one that the user's own reward ended


@dataclass
class GradedTree:
    """A finished training search: its key in the journal, the task, the tree, its cost and how it
    was extended.

    `flat_at_first` tells that all trajectories had earned the same before any extension;
    `extensions` counts the searches that were added (`train.requeue_limit`); `saved` counts the
    simulations that an adaptive budget left out. `prompt_ids` are the tokens before the tree's
    root, `policy_version` the engine's when the search began.
    """

    key: str
    task: Task
    tree: Tree
    cost: Cost
    ended_by: str
    flat_at_first: bool
    extensions: int
    prompt_ids: TokenIds = ()
    policy_version: int = 0
    saved: int = 0

    @cached_property
    def responses(self) -> list[Trajectory]:
        """The tree's distinct finished responses, extracted once: the tree is finished too."""
        return trajectories(self.tree)

    @property
    def failed_reward(self) -> str | None:
        """What the user's own reward did wrong, where that ended the question."""
        return (
            self.ended_by.removeprefix(FAILED_REWARD)
            if self.ended_by.startswith(FAILED_REWARD)
            else None
        )

    def record(self, **more: Any) -> JsonObject:
        """The journal line."""
        return tree_record(
            self.key,
            self.task.problem,
            self.tree,
            self.cost,
            self.ended_by,
            self.prompt_ids,
            self.policy_version,
            flat_at_first=self.flat_at_first,
            extensions=self.extensions,
            saved=self.saved,
            **more,
        )

    @classmethod
    def from_record(cls, record: Facts, task: Task) -> GradedTree:
        """The tree of a journal line. Raises DataError when the line isn't a whole record."""
        try:
            return cls(
                record["key"],
                task,
                Tree.from_dict(record["tree"]),
                Cost(**record["cost"]),
                record["ended_by"],
                record["flat_at_first"],
                record["extensions"],
                tuple(record["prompt_ids"]),
                record["policy_version"],
                record["saved"],
            )
        except (KeyError, TypeError) as error:
            raise DataError(
                f"journal record {record.get('key')!r} lacks {error}: remove its line"
            ) from error


def tree_record(
    key: str,
    problem: Problem,
    tree: Tree,
    cost: Cost,
    ended_by: str,
    prompt_ids: Sequence[int],
    policy_version: int,
    *,
    flat_at_first: bool = True,
    extensions: int = 0,
    saved: int = 0,
    **more: Any,
) -> JsonObject:
    """The journal line of a finished search, graded or not: the fields of `GradedTree`, `more`
    before its tree.
    """
    return {
        "key": key,
        "problem": {"id": problem.id, "question": problem.question, "source": problem.source},
        "flat_at_first": flat_at_first,
        "extensions": extensions,
        "ended_by": ended_by,
        "saved": saved,
        "policy_version": policy_version,
        "prompt_ids": list(prompt_ids),
        "cost": cost.as_dict(),
        **more,
        "tree": tree.to_dict(),
    }
