"""GRPO (Shao et al. 2024): each response of a question against the others, a clipped ratio, and a
KL penalty where one is on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config.load import Config
from ...config.train import Rates, TrainConfig
from ...engine.protocol import Verifier
from ...errors import ConfigError
from ...problems.registry import open_source
from ..credited_rows import CreditedRows
from ..train_row import TrainRows
from .base import Method, Objective, Totals

if TYPE_CHECKING:
    import torch

    from ..learner import Learner
    from ..losses import Coefficients, Streams

RowNumbers = dict[int, Sequence[float]]  # of a row's tokens, by the row's index in its round


class Grpo(Objective):
    """GRPO over rows that bring their advantages and the log-probabilities that they were sampled
    with.
    """

    kl_in_loss = True
    importance = True

    def __init__(self, settings: TrainConfig, model: Any) -> None:
        self.settings, self.model = settings, model
        self.pack: str = settings.pack
        # The reference policy is what the run started from: a copy of what is trained, put in for a
        # moment.
        from ..models import trained_state

        self.start = on_cpu(trained_state(model)) if settings.kl_coefficient else None
        self.reference: RowNumbers = {}

    def totals(self, rows: TrainRows) -> Totals:
        """How many tokens there are."""
        return (sum(row.own_tokens for row in rows),)

    def begin(self, learner: Any, rows: TrainRows, number: int) -> dict[str, float]:
        """Score a round's rows under the reference policy, where a KL penalty is on. Returns
        figures of the round.
        """
        import torch

        from ..models import load_trained_state, trained_state
        from ..scoring import Scorer

        if self.start is not None:
            now = on_cpu(trained_state(self.model))
            load_trained_state(self.model, self.start)
            scorer = Scorer(self.model)
            self.reference = by_row(
                learner, rows, lambda part: learner.score_under(scorer, part).logprobs
            )
            load_trained_state(self.model, now)
        own = [a for row in rows if row.kind == "policy" for a in row.own(row.advantages) if a]
        of_policy = torch.tensor([a for part in learner.ranks.gather(own) for a in part])
        if len(of_policy) < 2:
            return {}
        return {"advantage_mean": of_policy.mean().item(), "advantage_std": of_policy.std().item()}

    def advantages(self, rows: TrainRows) -> list[Sequence[float]]:
        """One number a token of each row."""
        return [row.advantages for row in rows]

    def coefficients(self) -> Coefficients:
        """The clip's bounds, and the KL's weight."""
        from ..losses import Coefficients

        train = self.settings
        return Coefficients(
            clip_low=train.clip_low, clip_high=train.clip_high, kl=train.kl_coefficient
        )

    def streams(self, rows: TrainRows) -> Streams:
        """Advantages into the policy gradient, the reference's log-probabilities into the KL."""
        from ..losses import Streams

        penalised = self.reference if self.kl_in_loss else {}
        return Streams(
            advantages=self.advantages(rows),
            old=[row.old_logprobs for row in rows],
            kl=[penalised[row.index] for row in rows] if penalised else (),
        )


def on_cpu(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights that wait, out of the device's memory."""
    return {name: value.cpu() for name, value in state.items()}


def by_row(
    learner: Learner,
    rows: TrainRows,
    compute: Callable[[TrainRows], torch.Tensor],
) -> RowNumbers:
    """What `compute` gives of rows' tokens, `[B, T]` of as many rows as a forward takes, by the
    rows' indices.
    """
    import torch

    numbers: RowNumbers = {}
    with torch.no_grad(), learner.autocast():
        for part in learner.parts_of(rows):
            for row, values in zip(part, compute(part), strict=True):
                numbers[row.index] = values[: len(row.completion_ids)].tolist()
    return numbers


def check_credit(config: Config) -> None:
    """Raise ConfigError where `train.credit: turn` has no turns, or `process` has turns in
    worlds."""
    source = open_source(config)
    if config.train.credit == "turn" and not source.worlds:
        raise ConfigError(
            f"train.credit is turn and source {source.name} has no turns: set it to step"
        )
    if config.train.process and source.worlds:
        raise ConfigError(
            f"train.credit is process, which scores lines, and source {source.name} has turns in "
            "worlds: set it to turn or group"
        )


def load_process(student: Any, config: Config) -> Verifier | None:
    """The process reward model that `train.credit: process` scores steps with."""
    if not config.train.process:
        return None
    from ...policy.critic import load_prm

    return load_prm(Path(str(config.train.prm)), student, config)


GRPO = Method(
    name="grpo",
    rows=CreditedRows,
    objective=lambda train, model, lora: Grpo(train, model),
    rates=Rates(large=1e-5),
    reads=frozenset(
        {
            "clip_high",
            "clip_low",
            "credit",
            "kl_coefficient",
            "negative_weight",
            "pack",
            "reward",
            "rows_per_round",
            "teacher_rows",
        }
    ),
    credits=("group", "step", "turn", "process"),
    flagged=True,
    compares=True,
    check=check_credit,
    load=load_process,
)
