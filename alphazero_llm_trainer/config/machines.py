"""Machines that a run can be planned for: `8xH100-80`, `1x4090`, or `2x24` for cards of which the memory alone is said."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import PositiveFloat

from ..errors import ConfigError
from .load import read_yaml, shipped
from .sections import Section

MACHINE = re.compile(r"(\d+)x(.+)")
MOST_CARDS = 4096


class Card(Section):
    """A GPU: GiB of memory, peak TFLOP/s in dense bfloat16, GB/s of memory, dollars an hour, and where that is said."""

    memory: PositiveFloat
    tflops: PositiveFloat
    gb_s: PositiveFloat
    dollars: PositiveFloat | None = None
    source: str


class Shares(Section):
    """Of a card's peak that each phase reaches."""

    train: PositiveFloat
    forward: PositiveFloat
    decode: PositiveFloat
    bandwidth: PositiveFloat


class StepMs(Section):
    """Milliseconds that a decode step takes a layer, however few rows it has."""

    inprocess: PositiveFloat
    vllm: PositiveFloat


class Machines(Section):
    """The table of `machines.yaml`."""

    shares: Shares
    step_ms_per_layer: StepMs
    cards: dict[str, Card]


@dataclass(frozen=True, slots=True)
class Machine:
    """`count` cards of `memory` GiB; `card` is None where the name says memory alone, and then there are no rates."""

    name: str
    count: int
    memory: float
    card: Card | None


def read_machines() -> Machines:
    """The shipped table."""
    return Machines.model_validate(read_yaml(shipped("machines.yaml")))


def parse_machine(text: str, table: Machines) -> Machine:
    """The machine that a text such as `8xH100-80` or `2x24` names. Raises ConfigError for any other."""
    known = ", ".join(table.cards)
    found = MACHINE.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"--machine is {text!r}: write COUNTxCARD, such as 8xh100-80, with a card of {known}, or GiB")
    count, name = int(found[1]), found[2]
    if not 1 <= count <= MOST_CARDS:
        raise ConfigError(f"--machine is {text!r}: use 1 to {MOST_CARDS} cards")
    if name in table.cards:
        card = table.cards[name]
        return Machine(f"{count} x {name}", count, card.memory, card)
    try:
        memory = float(name)
    except ValueError:
        memory = 0.0
    if not 1 <= memory <= 1024:
        raise ConfigError(f"--machine is {text!r}: name a card of {known}, or its memory in GiB, 1 to 1024")
    return Machine(f"{count} x {memory:g} GiB", count, memory, None)
