"""A trained process reward model as a verifier: an engine of its own, so that shared prefixes are computed once.

A PRM folder holds `prm.json` (kind, figures, the rule for a response's total, the hashes of the other files; written
last, so a folder without it was never finished), the language model, and `prm.safetensors`: `weight` `[D]` (absent in
an implicit one), `bias` and `mix` of `p = sigmoid(mix * log p(step | prefix) + weight . h + bias)`, calibration included.
Over a quantised base it holds a LoRA adapter instead of the model, computes in the policy's own layers, and belongs to the
policies of one base.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ..config.load import Config
from ..engine.inprocess import InProcessEngine
from ..engine.protocol import Engine, Judgement
from ..errors import CheckpointError
from ..types import Problem, Step
from .adapters import PRM
from .public_prm import CausalPrm, ClassifierPrm, load_public
from .student import Student
from .value import on_base, shared_model

CARD, SCORE, ADAPTER = "prm.json", "prm.safetensors", "adapter"
TOTALS = ("min", "product", "last")
FLOOR = -16.0  # nats, of a step's log-probability, as in training
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
    if config.train.prm.format is not None and not (folder / CARD).is_file():
        return load_public(folder, config.train.prm.format, config)
    card = read_card(folder)
    if card["vocabulary"] != student.model.config.vocab_size:
        raise CheckpointError(
            f"PRM {folder} is for {card['vocabulary']} tokens, student {student.name} has"
            f" {student.model.config.vocab_size}: train a PRM for this student"
        )
    try:
        tensors = load_file(folder / SCORE)
        mix, policy, bias = (float(tensors[name]) for name in ("mix", "policy", "bias"))
    except (OSError, SafetensorError, KeyError) as error:
        raise CheckpointError(f"PRM {folder} has no readable {SCORE}: train it again") from error
    engine = InProcessEngine(
        language_model(folder, student, card),
        eos_id=student.engine.eos_id,
        line_end_ids=student.engine.line_end_ids,
        settings=config.engine,
        eos_ids=student.engine.eos_ids,
    )
    weight = tensors.get("weight")
    if weight is not None:
        engine.set_value(weight.float(), bias)
    return EnginePrm(engine, mix, policy, bias, weight is not None, card["total"], card)


def language_model(folder: Path, student: Student, card: dict[str, Any]) -> Any:
    """The folder's model, or the student's own under the folder's adapter."""
    if (folder / ADAPTER).is_dir():
        if not on_base(card, student):
            raise CheckpointError(
                f"PRM {folder} is an adapter over other weights than student {student.name} has: name that student's"
                " folder, or train a PRM for this one"
            )
        return shared_model(folder, student, card, PRM)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, student.spec.dtype))
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"PRM {folder} has no readable model: train it again") from error
    weight: Any = student.model.get_input_embeddings().weight
    return model.to(weight.device).eval()


def read_card(folder: Path) -> dict[str, Any]:
    """prm.json, after a check of every file it names."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"PRM {folder} has no {CARD}: name a folder that `prm` finished, or set train.prm.format for a public one"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"PRM {folder} has a broken {CARD}: train it again") from error
    if not isinstance(card, dict) or not {"kind", "policy", "vocabulary", "total", "files"} <= card.keys():
        raise CheckpointError(f"PRM {folder} has a broken {CARD}: train it again")
    for name, expected in card["files"].items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise CheckpointError(f"PRM {folder} lacks {name}: train it again") from error
        if found != expected:
            raise CheckpointError(f"PRM {folder} has a truncated or changed {name}: train it again")
    return card
