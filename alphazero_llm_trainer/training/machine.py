"""How long a run would take on a machine, and at what price: plain arithmetic over the table of `config/machines.yaml`.

A forward takes 2 floating-point operations a parameter and token, a backward twice as many, and computing activations again
one forward more (Kaplan et al. 2020, "Scaling laws for neural language models", section 2.1). Under LoRA the frozen weights
need no gradients of their own, so that the backward takes as much as the forward. A decode step reads all weights and the
keys and values of every row once, or computes a forward of one token a row, whichever takes longer, and no step is shorter
than launching its kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config.machines import Machine, Machines
from .memory import Forecast, nf4_bytes
from .size import RunSize

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens of a run by what is done with them. All are upper bounds, as `RunSize`'s are.

    `trained` are those of all epochs, prompts included, under each network that is trained.
    """

    sampled: int
    evaluated: int
    scored: int
    trained: int

    @classmethod
    def of(cls, forecast: Forecast, size: RunSize) -> Work:
        config = forecast.config
        train, settings = config.train, config.train.settings
        measured = config.rewards.use_student_model and config.rewards.pre_weight > 0
        rows = size.updates * settings.batch_size
        networks = 2 if train.method == "ppo" else 1
        return cls(
            size.sampled_tokens,
            size.evaluated_tokens,
            size.sampled_tokens if measured else 0,
            networks * rows * forecast.length,
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second on one card."""

    decode: float
    score: float
    train: float

    @classmethod
    def of(cls, forecast: Forecast, machine: Machine, table: Machines, backend: str) -> Rates:
        """What a card does; `backend` is "inprocess" or "vllm". The machine must have a named card."""
        assert machine.card is not None
        peak, shares = machine.card.tflops * 1e12, table.shares
        weights = forecast.counts.whole
        again = 1 if forecast.config.train.recomputes(True, forecast.quantised) else 0
        passes = (1 if forecast.lora else 2) + 1 + again
        step = decode_seconds(forecast, machine, table, backend, forecast.rows)
        return cls(
            forecast.rows / step,
            peak * shares.forward / (2 * weights),
            peak * shares.train / (2 * passes * weights),
        )


def decode_seconds(forecast: Forecast, machine: Machine, table: Machines, backend: str, rows: int) -> float:
    """What one card takes for the next token of so many rows at once, of half the full length in the mean."""
    assert machine.card is not None
    card, shares, counts = machine.card, table.shares, forecast.counts
    read = float(counts.whole * forecast.width)
    if forecast.quantised and backend == "inprocess":  # 4-bit weights are made bfloat16 at each use
        read = nf4_bytes(counts) + 2 * counts.linear * 2 + counts.other * 2
    kept = rows * forecast.length / 2 * forecast.token_bytes
    return max(
        (read + kept) / (card.gb_s * 1e9 * shares.bandwidth),
        2 * counts.whole * rows / (card.tflops * 1e12 * shares.decode),
        forecast.shape.layers * getattr(table.step_ms_per_layer, backend) / 1e3,
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """Who runs where. `engines` and `trainers` are cards that work at each; with `shared` they are the same cards.

    `needs` are GiB of the fullest card, `hours` by phase, empty without rates.
    """

    name: str
    how: str
    engines: int
    trainers: int
    needs: float
    fits: bool
    hours: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.hours.values())

    def as_dict(self, dollars: float | None, cards: int) -> dict[str, Any]:
        price = None if dollars is None or not self.hours else dollars * cards * self.total
        return {
            "name": self.name,
            "how": self.how,
            "engines": self.engines,
            "trainers": self.trainers,
            "needs_gib": self.needs,
            "fits": self.fits,
            "hours": self.hours or None,
            "dollars": price,
        }


def hours(work: Work, rates: Rates, engines: int, trainers: int) -> dict[str, float]:
    """Hours of each phase; phases follow each other, as a round's search and training do."""
    return {
        "search": (work.sampled / rates.decode + work.scored / rates.score) / engines / HOUR,
        "evaluation": work.evaluated / rates.decode / engines / HOUR,
        "training": work.trained / rates.train / trainers / HOUR,
    }
