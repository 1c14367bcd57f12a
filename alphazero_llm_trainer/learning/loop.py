"""AlphaZero's loop: search, credit, score, loss, backward, clip, step.

What searches is in `rounds.py`, what becomes of trees in `rows.py` and `credit.py`, what a method
minimises in `methods/` and `losses.py`, what is trained in `learner.py`. Who loads the models, asks
whether to stop and keeps what a run leaves behind is in `runs/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ..tree.graded import GradedTree
from .learner import Learner
from .rounds import Rounds
from .rows import Minibatches, TrainRow
from .stats import RoundStats


class Recording(Protocol):
    """What is told of each round when it is done."""

    def round(self, stats: RoundStats, figures: dict[str, float]) -> None:
        """A round's figures."""

    def checkpoint(self, learner: Learner, rounds_done: int, share: float) -> None:
        """The weights after `rounds_done` rounds, when `share` of the run is done."""


def train(
    rounds: Rounds,
    credit: Callable[[int, list[GradedTree], RoundStats], Minibatches],
    passes: Callable[[int, Minibatches], Iterable[Sequence[TrainRow]]],
    learner: Learner,
    recorder: Recording,
    start: int = 0,
) -> None:
    """Train in rounds from number `start` on, until all questions are asked or `train.tokens` are
    sampled.

    Args:
        rounds: searches a round's questions.
        credit: the rows of a round's trees, by minibatch, with what each of their tokens earned.
        passes: a round's minibatches, as often as the method goes over them.
        learner: the model under training, with its objective.
        recorder: keeps figures and checkpoints.

    Raises:
        StoppedError: the user ended the run; `rounds` and `passes` ask.
    """
    objective = learner.objective
    for number in rounds.left(start):
        trees, stats = rounds.search(number)  # rollouts: graded trees
        minibatches = credit(number, trees, stats)
        of_round = learner.begin(number, minibatches)
        of_updates: list[dict[str, float]] = []
        for minibatch in passes(number, minibatches):
            for part in learner.parts(minibatch):  # as many rows as a forward takes
                scores = learner.score(part)  # log-probabilities and values, with gradients
                loss, figures = objective.loss(part, scores, learner.totals)  # losses.py
                learner.backward(loss, scores, figures)
            of_updates.append(learner.clip())
            learner.step()
        share = rounds.share(number + 1)
        of_round |= learner.end(share)
        recorder.round(stats, means(of_updates) | of_round)
        recorder.checkpoint(learner, number + 1, share)


def means(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each figure over the updates that have it: a minibatch of demonstrations alone
    has no critic's figures.
    """
    names = dict.fromkeys(name for figures in updates for name in figures)
    values = {name: [figures[name] for figures in updates if name in figures] for name in names}
    return {name: sum(some) / len(some) for name, some in values.items()}
