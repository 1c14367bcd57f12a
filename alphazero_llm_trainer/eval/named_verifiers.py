"""The verifiers that `eval` knows by name: each judges a response, or the beginning of one, without
a gold answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..chat.judge import open_judge
from ..config.load import Config
from ..config.refusals import refuse_conflicts
from ..engine.protocol import Judgement, Verifier
from ..errors import ConfigError
from ..policy.verifiers import RANKING, LogProbability, Product
from ..problems.step_checks import Calculator
from ..rewards.custom import JUDGE
from ..types import Problem, Steps, TokenIds

if TYPE_CHECKING:
    from ..policy.student import Student

SINGLE = ("none", "log-probability", "calculator", "prm", "value", JUDGE)


class NoVerifier:
    """Everything is as good as everything else."""

    name, checks, guides, computes, scored_tokens = "none", True, False, False, 0

    async def __call__(self, problem: Problem, prompt_ids: TokenIds, steps: Steps) -> Judgement:
        return Judgement((1.0,) * len(steps), 1.0)


def named_verifier(name: str | None, prm: Path | None, value: Path | None, beside: str = "") -> str:
    """The verifier that is named; where none is, `beside` and the network that is named, or the
    calculator.

    Raises ConfigError for a verifier that there isn't, or that asks another network than is named.
    """
    networks = [
        network for network, folder in (("prm", prm), ("value", value)) if folder is not None
    ]
    if name is None:
        name = beside + "+".join(networks) if networks else "calculator"
    parts = name.split("+")
    known = SINGLE if len(parts) == 1 else SINGLE[1:]
    if not set(parts) <= set(known) or len(set(parts)) < len(parts):
        raise ConfigError(
            f"--verifier is {name!r}: choose one of {', '.join(SINGLE)}, "
            "or join some of them with +"
        )
    for network in ("prm", "value"):
        if (network in parts) != (network in networks):
            state = "named" if network in networks else "missing"
            raise ConfigError(
                f"--verifier is {name!r} and --{network} is {state}: name the folder of a network "
                "that is asked, and of no other"
            )
    if len(networks) > 1:
        raise ConfigError(
            f"--verifier {name} would ask two networks, whose tokens are counted once: "
            "give --prm or --value alone"
        )
    return name


# Of `search`, what a search under a verifier doesn't read: it draws and judges single steps until a
# response passes or the budget is spent.
UNJUDGED_KEYS = ("mode", "rollout", "rollout_weight", "samples", "simulations", "value")


def check_judged(name: str, config: Config) -> None:
    """Raise ConfigError for settings that a search under the verifier `name` doesn't read, and for
    a judge that is missing, doesn't answer, or is asked by nobody.
    """
    asked = JUDGE in name.split("+")
    if asked:
        open_judge(config.rewards.judge, config.teachers, "--verifier").greet()
    refuse_conflicts(config, "judged searches", asked=asked)
    other = "" if name == "none" else "take --verifier none, "
    why = (
        f"and under --verifier {name} each step is judged as it is drawn, until the budget is "
        f"spent: leave it out, or {other}with --value where a value is to guide the search"
    )
    guided = {"rollout"} if "value" in name.split("+") else set()
    config.refuse({f"search.{key}": why for key in UNJUDGED_KEYS if key not in guided})


def load_verifier(
    name: str, student: Student, config: Config, prm: Path | None, value: Path | None
) -> Verifier:
    """The verifier of that name, a product where it joins several; networks come from their folders
    (see `named_verifier`).
    """

    def load(part: str) -> Verifier:
        if part == JUDGE:
            return open_judge(config.rewards.judge, config.teachers, "--verifier")
        if part == "prm":
            from ..policy.critic import load_prm

            assert prm is not None
            return load_prm(prm, student, config)
        if part == "value":
            from ..policy.critic import CriticVerifier, load_value

            assert value is not None
            return CriticVerifier(load_value(value, student, config), "value")
        if part == RANKING:
            return LogProbability()
        return Calculator() if part == "calculator" else NoVerifier()

    parts = [load(part) for part in name.split("+")]
    return parts[0] if len(parts) == 1 else Product(parts)
