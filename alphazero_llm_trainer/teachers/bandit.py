"""Which teacher is asked next: a bandit by realised value, dollars and seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from ..engine.protocol import TeacherLedger
from ..types import Direction

NOTHING = 0.0  # the reward of an ask that gave no step; 0.5 is a step as good as the student's own


@dataclass(slots=True)
class Arm:
    """A teacher asked for one direction: `asked` counts the asks, `learned` those whose value is known, and `total` adds
    it up."""

    asked: int = 0
    learned: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.learned if self.learned else 0.5


def realised(value: float, student: float, direction: Direction) -> float:
    """What a teacher's step gained, in [0, 1]: its rollout's reward against the student's own mean reward beside it.

    A likely-wrong step gains by being worth less.
    """
    gain = student - value if direction is Direction.WRONG else value - student
    return (max(-1.0, min(1.0, gain)) + 1.0) / 2.0


@dataclass(slots=True)
class Bandit:
    """UCB1 (Auer et al. 2002) over teachers with the price in the denominator, as budgeted bandits have it (Tran-Thanh et
    al. 2012, KUBE): `mean / (1 + w_d * dollars + w_s * seconds) + c * sqrt(ln(asks) / asked)`, a direction each.

    Dollars and seconds are a teacher's means over its calls. Whom nobody asked yet comes first, those first whose
    strengths name the direction. The same history and seeds give the same order.
    """

    exploration: float = 0.5
    dollars_weight: float = 100.0
    seconds_weight: float = 0.05
    strengths: Mapping[str, Iterable[str]] = field(default_factory=dict)
    arms: dict[tuple[str, str], Arm] = field(default_factory=dict)

    def arm(self, teacher: str, direction: Direction) -> Arm:
        return self.arms.setdefault((teacher, str(direction)), Arm())

    def rank(self, teachers: Sequence[tuple[str, TeacherLedger]], direction: Direction, rng: Random) -> list[int]:
        """Indices of `teachers`, best first; `rng` breaks ties."""
        asks = sum(self.arm(name, direction).asked for name, _ in teachers)
        keys = [(self.index(name, ledger, direction, asks), rng.random()) for name, ledger in teachers]
        return sorted(range(len(teachers)), key=lambda i: keys[i], reverse=True)

    def index(self, teacher: str, ledger: TeacherLedger, direction: Direction, asks: int) -> tuple[float, bool]:
        """What the order goes by."""
        arm, strong = self.arm(teacher, direction), str(direction) in self.strengths.get(teacher, ())
        if not arm.asked:
            return math.inf, strong
        calls = max(ledger.calls - ledger.cached, 1)
        price = self.dollars_weight * ledger.cost.dollars / calls + self.seconds_weight * ledger.cost.seconds / calls
        return arm.mean / (1.0 + price) + self.exploration * math.sqrt(math.log(max(asks, 1)) / arm.asked), strong

    def asked(self, teacher: str, direction: Direction, times: int = 1) -> None:
        """Count an ask; -1 takes one back that never was sent."""
        self.arm(teacher, direction).asked += times

    def learn(self, teacher: str, direction: Direction, reward: float) -> None:
        """An ask's `realised` value, or `NOTHING`."""
        arm = self.arm(teacher, direction)
        arm.learned += 1
        arm.total += reward
