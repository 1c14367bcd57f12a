"""A trained process reward model as a verifier: an engine of its own, so that shared prefixes are computed once.

A PRM folder (see `policy.judge_folder`) holds `prm.json` (the rule for a response's total among others), the language
model, and `prm.safetensors`: `weight` `[D]` (absent in an implicit one), `bias` and `mix` of
`p = sigmoid(mix * log p(step | prefix) + weight . h + bias)`, calibration included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..engine.protocol import Engine, Judgement
from ..errors import CheckpointError
from ..types import Problem, Step
from .adapters import PRM
from .judge_folder import JudgeFolder
from .public_prm import CausalPrm, ClassifierPrm, load_public
from .student import Student, engine_over

FOLDER = JudgeFolder(
    "PRM",
    "prm.json",
    "prm.safetensors",
    frozenset({"total"}),
    "name a folder that `prm` finished, or set train.prm.format for a public one",
    PRM,
)
TOTALS = ("min", "product", "last")
FLOOR = -16.0  # nats: a step less likely than this is as good as impossible, and its gradient would drown the others
SATURATED = 1e-7  # of a probability in fp32


def total_of(rule: str, steps: Sequence[float]) -> float:
    """A response's score from its steps': the least, the product, or the last one's. No steps give 1."""
    if not steps:
        return 1.0
    return min(steps) if rule == "min" else math.prod(steps) if rule == "product" else steps[-1]


@dataclass(slots=True)
class EnginePrm:
    """`engine.protocol.Verifier`: how likely each step is right, by a PRM's own engine. `card` is prm.json.

    `mix`, `policy` and `bias` are those of the folder; the engine's value head holds the weight and the bias where `head`.
    """

    engine: Engine
    mix: float
    policy: float
    bias: float
    head: bool
    total: str
    card: dict[str, Any]
    name: str = "prm"
    computes: bool = True

    @property
    def scored_tokens(self) -> int:
        """Tokens that the engine computed."""
        return self.engine.stats.computed_tokens

    async def __call__(self, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]) -> Judgement:
        """See `Verifier`. Raises RequestError for a response that doesn't fit into the context."""
        if not steps:
            return Judgement((), 1.0)
        logits = await self.logits(prompt_ids, [step.token_ids for step in steps])
        likely = [max(math.fsum(step.logprobs), FLOOR) for step in steps]
        scores = [squash(logit + self.policy * logprob) for logit, logprob in zip(logits, likely, strict=True)]
        return Judgement(tuple(scores), total_of(self.total, scores))

    async def logits(self, prompt: tuple[int, ...], steps: Sequence[tuple[int, ...]]) -> list[float]:
        """What the PRM itself says of each step `[S]` after those before it."""
        logits = [0.0 if self.head else self.bias] * len(steps)
        prefix, prefixes = prompt, []
        for step in steps:
            prefix += step
            prefixes.append(prefix)
        if self.mix:
            [tokens] = await self.engine.score([(prompt, prefix[len(prompt) :])])
            at = 0
            for i, step in enumerate(steps):
                logits[i] += self.mix * max(math.fsum(tokens[at : at + len(step)]), FLOOR)
                at += len(step)
        if self.head:
            values = await self.engine.values(prefixes)
            logits = [logit + unsquash(value) for logit, value in zip(logits, values, strict=True)]
        return logits


def squash(logit: float) -> float:
    """The logistic function, for any finite number."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else 1 - 1 / (1 + math.exp(max(logit, -700.0)))


def unsquash(p: float) -> float:
    p = min(max(p, SATURATED), 1 - SATURATED)
    return math.log(p / (1 - p))


def load_prm(folder: Path, student: Student, config: Config) -> EnginePrm | CausalPrm | ClassifierPrm:
    """The verifier of a folder that the `prm` command wrote, for responses of `student` (`config.engine` sizes its engine).

    A folder without prm.json is a public PRM's where `train.prm.format` names its format.

    Raises:
        CheckpointError: the folder isn't finished, a file of it changed, or it doesn't belong to this student.
    """
    if config.train.prm.format is not None and not (folder / FOLDER.card).is_file():
        return load_public(folder, config.train.prm.format, config)
    card = FOLDER.read_card(folder)
    if card["vocabulary"] != student.model.config.vocab_size:
        raise CheckpointError(
            f"PRM {folder} is for {card['vocabulary']} tokens, student {student.name} has"
            f" {student.model.config.vocab_size}: train a PRM for this student"
        )
    tensors = FOLDER.read_numbers(folder, "mix", "policy", "bias")
    mix, policy, bias = (float(tensors[name]) for name in ("mix", "policy", "bias"))
    from transformers import AutoModelForCausalLM

    engine = engine_over(FOLDER.read_model(folder, student, card, AutoModelForCausalLM), student, config)
    weight = tensors.get("weight")
    if weight is not None:
        engine.set_value(weight.float(), bias)
    return EnginePrm(engine, mix, policy, bias, weight is not None, card["total"], card)
