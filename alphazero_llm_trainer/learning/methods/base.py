"""What a method of training is: one object in a file of this folder, or of the user's own
(`train.method: file.py:NAME`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...config.load import Config
from ...config.sections import LoraConfig
from ...config.train import Rates, TrainConfig
from ..earned import Searches
from ..train_row import TrainRows

if TYPE_CHECKING:
    import torch

    from ..losses import Coefficients, Loss, Streams


USUAL = Rates()
Totals = tuple[float, ...]  # what the means over a minibatch are taken over


class Objective:
    """What a method minimises."""

    pack = "off"
    unit = 1  # rows that a forward has together
    # PPO's, AlphaZero's over the policy's own states, and one that is trained alone
    critic: Any = None
    value: torch.nn.Module | None = None  # the layer of the latter
    # whether rows are weighed by their probability's ratio to the one that they were sampled with
    importance = False
    columns: ClassVar[
        Mapping[str, str]
    ] = {}  # `losses.Streams` by name: the field of a row that goes into it

    def totals(self, rows: TrainRows) -> Totals:
        """What the means over a minibatch are taken over: the loss's first (its tokens, or their
        weights), then others.
        """
        raise NotImplementedError

    def streams(self, rows: TrainRows) -> Streams:
        """Which numbers of the rows' tokens go into which term of the loss: `columns`, and others
        where this is overridden.
        """
        from ..losses import Streams

        columns = self.columns.items()
        return Streams(**{stream: [getattr(row, name) for row in rows] for stream, name in columns})

    def coefficients(self) -> Coefficients:
        """The terms' weights and bounds."""
        from ..losses import Coefficients

        return Coefficients()

    def values(self, rows: TrainRows) -> torch.Tensor | None:
        """Values `[B, T]` of the states before the tokens by a critic beside the policy, where
        there is one.
        """
        return None

    def loss(self, rows: TrainRows, scores: Any, totals: torch.Tensor) -> Loss:
        """The loss of a part of a minibatch, whose whole has these `totals`, and figures that add
        up to the minibatch's. `scores` has the rows' `logprobs` `[B, T]` (`scoring.Scores`).
        """
        from ..losses import objective_loss

        streams, by = self.streams(rows), self.coefficients()
        return objective_loss(streams, rows, scores.logprobs, scores.values, totals, by)

    def extra(self) -> Mapping[str, torch.nn.Parameter]:
        """What is trained beside the policy: PPO's critic."""
        return {}

    def begin(self, learner: Any, rows: TrainRows, number: int) -> dict[str, float]:
        """Round `number` has these rows of this process's. Returns figures of the round."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Method(Searches):
    """A way of learning from trees.

    Args:
        name: of its recipe, config/NAME.yaml, and of its random streams.
        rows: makes rows of a round's trees: a class of `rows.RowBuilder`.
        objective: makes what is minimised, of the section `train`, the model, and the adapters'
            settings where adapters are trained.
        rates: learning rates where the configuration gives none.
        reads: the keys of `train` that it reads and not every method does.
        credits: the values of `train.credit` that it knows.
        flagged: whether cli/flags.yaml has a flag of it, --use-NAME.
        compares: whether it learns from how the responses to a question differ.
        alone: whether it trains in one process.
        sharded: whether FSDP can cut up what it trains.
        critics: how many critics of the policy's size it trains beside it.
        check: raises ConfigError for a configuration that it can't begin with.
        load: what its rows are scored with beside the student, loaded before the run's folder is
            made: a process reward model, a teacher; None where nothing is.
    """

    name: str
    rows: Callable[..., Any]
    objective: Callable[[TrainConfig, Any, LoraConfig | None], Objective]
    rates: Rates = USUAL
    reads: frozenset[str] = frozenset()
    credits: tuple[str, ...] = ()
    flagged: bool = False
    compares: bool = False
    alone: bool = False
    sharded: bool = True
    critics: int = 0
    check: Callable[[Config], None] = lambda config: None
    load: Callable[[Any, Config], Any] = lambda student, config: None

    @property
    def flag(self) -> str:
        """What names it on a command line."""
        return f"--use-{self.name}" if self.flagged else f"--config {self.name}"
