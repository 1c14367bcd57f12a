"""What a round's searches gave, in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..tree.extract import Trajectory
from ..tree.graded import GradedTree
from ..types import Cost
from .collector import Collector


@dataclass(slots=True)
class RoundStats:
    """What a round's searches gave. Shares are of its questions; `depth` is the mean of the trees'
    deepest nodes.

    `updates_left_out` counts those that `train.buffer_passes` kept from being made, `taught` the
    distinct responses with a step of a teacher's, `failed_rewards` the questions that the user's
    own reward ended, which are among the `failed` ones. `value_auc` is AUC of AlphaZero's value
    over the states of these trees, `value_pair_accuracy` the share of pairs of steps after one
    state that it has in the right order, `value_error` how far its mean is above their outcomes'.
    `teacher_kl` is a distillation's KL(student || teacher) in nats a drawn token, `teacher_share`
    the tokens that its teacher scored over those of the responses one by one. None of a method
    without them.
    """

    round: int
    questions: int = 0
    flat_at_first: int = 0
    flat: int = 0
    extensions: int = 0
    taught: int = 0
    all_right: int = 0
    all_wrong: int = 0
    mixed: int = 0
    samples: int = 0
    mean_reward: float = 0.0
    solved: int = 0
    rows: int = 0
    updates: int = 0
    updates_left_out: int = 0
    rows_unused: int = 0
    rows_filled: int = 0
    value_auc: float | None = None
    value_pair_accuracy: float | None = None
    value_error: float | None = None
    teacher_kl: float | None = None
    teacher_share: float | None = None
    failed: int = 0
    failed_rewards: int = 0
    simulations: int = 0
    nodes_per_tree: float = 0.0
    depth: float = 0.0
    search_seconds: float = 0.0
    reused_trees: int = 0
    cost: Cost = field(default_factory=Cost)

    def count(self, trees: Sequence[GradedTree], collector: Collector) -> None:
        """Count a round's trees."""
        self.questions = len(trees)
        kinds = Counter(group_kind(tree.responses) for tree in trees)
        self.all_right, self.all_wrong, self.mixed = (
            kinds["solved"],
            kinds["hopeless"],
            kinds["mixed"],
        )
        total = 0.0
        for tree in trees:
            failed = tree.ended_by.startswith("failed")
            self.failed += failed
            self.failed_rewards += tree.failed_reward is not None
            self.flat_at_first += tree.flat_at_first
            self.flat += not failed and collector.zero_variance(tree.responses)
            self.extensions += tree.extensions
            self.taught += sum(not response.student for response in tree.responses)
            self.samples += sum(response.samples for response in tree.responses)
            self.solved += any(response.right for response in tree.responses)
            total += sum(
                collector.reward(response) * response.samples for response in tree.responses
            )
            self.cost.add(tree.cost)
            self.simulations += len(tree.tree.simulations)
            self.nodes_per_tree += (len(tree.tree) - 1) / len(trees)
            self.depth += max(tree.tree.depths()) / len(trees)
        self.mean_reward = total / max(self.samples, 1)


def group_kind(responses: Sequence[Trajectory]) -> str | None:
    """Whether a tree's responses are all right ("solved"), all wrong or equally good ("hopeless"),
    or "mixed"; None where none has a grade, which a rejected or unfinished one lacks.
    """
    outcomes = {response.outcome for response in responses} - {None}
    if len(outcomes) > 1:
        return "mixed"
    return None if not outcomes else "solved" if outcomes == {1.0} else "hopeless"
