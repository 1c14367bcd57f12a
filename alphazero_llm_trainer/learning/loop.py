"""AlphaZero's loop: search, credit, update.

What searches is in `rounds.py`, what becomes of trees in `rows.py` and `credit.py`, what a method
minimises in `methods/` and `losses.py`, what an update is (score, loss, backward, clip, step) in
`learner.py`. Who loads the models, asks
whether to stop and keeps what a run leaves behind is in `runs/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ..tree.graded import GradedTree
from .learner import Learner
from .rounds import Rounds
from .stats import RoundStats
from .train_row import Minibatches, TrainRows


class Lessons(Protocol):
    """What a method learns from a round's trees."""

    def minibatches(self, number: int, trees: list[GradedTree], stats: RoundStats) -> Minibatches:
        """The rows of a round's trees with what each of their tokens earned."""

    def passes(self, number: int, minibatches: Minibatches) -> Iterable[TrainRows]:
        """A round's minibatches, as often as the method goes over them."""


class Recording(Protocol):
    """What is told of each round when it is done."""

    def round(self, stats: RoundStats, figures: dict[str, float]) -> None:
        """A round's figures."""

    def checkpoint(self, learner: Learner, rounds_done: int, share: float) -> None:
        """The weights after `rounds_done` rounds, when `share` of the run is done."""


def train(
    rounds: Rounds,
    lessons: Lessons,
    learner: Learner,
    recorder: Recording,
    start: int = 0,
) -> None:
    """Train in rounds from number `start` on, until all questions are asked or `train.tokens` are
    sampled.

    Args:
        rounds: searches a round's questions.
        lessons: the rows of a round's trees, and how often the method goes over them.
        learner: the model under training, with its objective.
        recorder: keeps figures and checkpoints.

    Raises:
        StoppedError: the user ended the run; `rounds` and `lessons` ask.
    """
    for number in rounds.rounds_left(start):
        trees, stats = rounds.search(number)  # rollouts: graded trees
        minibatches = lessons.minibatches(number, trees, stats)  # credit: rows with targets
        of_round = learner.begin(number, minibatches)
        # Score, loss, backward, clip, step.
        of_updates = [learner.update(each) for each in lessons.passes(number, minibatches)]
        share = rounds.share(number + 1)
        of_round |= learner.end(share)
        recorder.round(stats, mean_figures(of_updates) | of_round)
        recorder.checkpoint(learner, number + 1, share)


def mean_figures(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each figure over the updates that have it: a minibatch of demonstrations alone
    has no critic's figures.
    """
    names = dict.fromkeys(name for figures in updates for name in figures)
    values = {name: [figures[name] for figures in updates if name in figures] for name in names}
    return {name: sum(some) / len(some) for name, some in values.items()}
