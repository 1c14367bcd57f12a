"""Public process reward models behind the verifier interface: one adapter per format of steps and
scores.

- *rlhflow* (Dong et al. 2024, and Skywork's causal ones in its template): each step is a user's
  turn of a chat, and the assistant's answer begins with `+` or `-`.
- *qwen-prm* (Zhang et al. 2025, Qwen2.5-Math-PRM): a backbone with two classes a token (one linear
  layer, or two with a ReLU between them), read at `<extra_0>` after each step.

Causal ones run in the in-process engine, which keeps prefixes; the token classifier computes each
response anew.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors import safe_open
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from ..config.load import Config
from ..engine.inprocess import InProcessEngine
from ..engine.protocol import UNJUDGED, Engine, Judgement
from ..engine.step_ends import StepEnds
from ..errors import CheckpointError, RequestError, first_line
from ..types import Problem, Step, TokenIds
from .fetch import from_hub
from .weights import load_weights

GOOD, BAD, SEPARATOR = "+", "-", "<extra_0>"
HEADS = re.compile(r"^(score|lm_head)\.")  # beside the backbone of a token classifier
QWEN_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def rlhflow_prefixes(tokenizer: Any, question: str, steps: Sequence[str]) -> list[TokenIds]:
    """The chat up to where the assistant judges each step; it has called all earlier ones good."""
    turns: list[dict[str, str]] = []
    prefixes = []
    for i, step in enumerate(steps):
        turns.append({"role": "user", "content": step if i else f"{question} {step}"})
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        prefixes.append(tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))
        turns.append({"role": "assistant", "content": GOOD})
    return prefixes


def qwen_prefixes(tokenizer: Any, question: str, steps: Sequence[str]) -> list[TokenIds]:
    """The chat up to the separator after each step, that one included. Raises RequestError where
    the steps hold separators too.
    """
    turns = [
        {"role": "system", "content": QWEN_SYSTEM},
        {"role": "user", "content": question},
        {"role": "assistant", "content": SEPARATOR.join(steps) + SEPARATOR},
    ]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    tag = tag_id(tokenizer, SEPARATOR)
    ends = [i + 1 for i, token in enumerate(ids) if token == tag]
    if len(ends) != len(steps):
        raise RequestError(
            f"a response of {len(steps)} steps has {len(ends)} step tags: "
            "its text holds the tag itself"
        )
    return [tuple(ids[:end]) for end in ends]


def tag_id(tokenizer: Any, tag: str) -> int:
    """The last token of a tag."""
    return int(tokenizer(tag, add_special_tokens=False)["input_ids"][-1])


def step_lines(steps: Sequence[Step]) -> list[str]:
    """The steps' texts without line ends."""
    return [step.text.strip() for step in steps]


@dataclass(slots=True)
class CausalPrm:
    """A verifier whose causal language model says yes or no after each step; the total is the least
    step.
    """

    engine: Engine
    tokenizer: Any
    name: str = "prm"
    checks: bool = True
    guides: bool = False
    computes: bool = True

    @property
    def scored_tokens(self) -> int:
        """Tokens that the engine computed."""
        return self.engine.stats.computed_tokens

    async def __call__(
        self, problem: Problem, prompt_ids: TokenIds, steps: Sequence[Step]
    ) -> Judgement:
        """The judgement of `steps` (lines of a response, the last one may end it) after the prompt
        that the policy read. A step scores p(yes) / (p(yes) + p(no)).
        """
        if not steps:
            return Judgement((), UNJUDGED)
        prefixes = rlhflow_prefixes(self.tokenizer, problem.question, step_lines(steps))
        answers = [tag_id(self.tokenizer, answer) for answer in (GOOD, BAD)]
        asked = [(prefix, (token,)) for prefix in prefixes for token in answers]
        logprobs = [logprob for [logprob] in await self.engine.score(asked)]
        scores = [
            1 / (1 + math.exp(b - a)) for a, b in zip(logprobs[::2], logprobs[1::2], strict=True)
        ]
        return Judgement(tuple(scores), min(scores))


@dataclass(slots=True)
class ClassifierPrm:
    """A verifier that reads class 1 of 2 off a backbone's states at the separators; the total is
    the least step.

    `layers` are (weight, bias) pairs with a ReLU between them.
    """

    backbone: Any
    layers: list[tuple[torch.Tensor, torch.Tensor]]
    tokenizer: Any
    name: str = "prm"
    checks: bool = True
    guides: bool = False
    computes: bool = True
    scored_tokens: int = 0

    async def __call__(
        self, problem: Problem, prompt_ids: TokenIds, steps: Sequence[Step]
    ) -> Judgement:
        """The judgement of `steps` (lines of a response, the last one may end it) after the prompt
        that the policy read.
        """
        if not steps:
            return Judgement((), UNJUDGED)
        prefixes = qwen_prefixes(self.tokenizer, problem.question, step_lines(steps))
        scores = self.compute(prefixes)
        return Judgement(scores, min(scores))

    @torch.inference_mode()
    def compute(self, prefixes: Sequence[TokenIds]) -> tuple[float, ...]:
        """The steps' probabilities by one forward."""
        self.scored_tokens += len(prefixes[-1])
        weight: Any = self.backbone.get_input_embeddings().weight
        ids = torch.tensor([prefixes[-1]], device=weight.device)
        # At each separator: [S, D], then [S, 2] after the head.
        states = self.backbone(input_ids=ids).last_hidden_state[
            0, [len(prefix) - 1 for prefix in prefixes]
        ]
        for i, (matrix, bias) in enumerate(self.layers):
            states = F.linear(states.relu() if i else states, matrix, bias)
        return tuple(states.float().softmax(-1)[:, 1].tolist())


def load_public(folder: Path, name: str, config: Config) -> CausalPrm | ClassifierPrm:
    """The verifier of a folder, or of a hub repository, in a format of `train.critic.format`.
    Raises CheckpointError where it isn't readable as one.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        folder = folder if folder.is_dir() else Path(from_hub(str(folder)))
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if name == "qwen-prm":
            backbone: Any = load_weights(AutoModel, str(folder), HEADS, dtype="auto")
            return ClassifierPrm(backbone.to(device).eval(), head_layers(folder, device), tokenizer)
        model: Any = load_weights(AutoModelForCausalLM, str(folder), dtype="auto")
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, httpx.HTTPError) as error:
        raise CheckpointError(
            f"PRM {folder} can't be read as {name} ({first_line(error)}): check the folder or the "
            "hub's id, and train.critic.format"
        ) from error
    engine = InProcessEngine(
        model.to(device).eval(),
        eos_id=tokenizer.eos_token_id,
        step_ends=StepEnds(frozenset()),
        settings=config.engine,
    )
    return CausalPrm(engine, tokenizer)


def head_layers(folder: Path, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The score head's layers: `score.weight` alone, or `score.0.weight` and `score.2.weight` (a
    ReLU is number 1).
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt", device=device) as opened:
            keys = [key for key in opened.keys() if key.startswith("score.")]  # noqa: SIM118
            tensors |= {key: opened.get_tensor(key) for key in keys}
    names = sorted(key.removesuffix(".weight") for key in tensors if key.endswith(".weight"))
    if not names:
        raise ValueError("there is no score head in it")
    layers = []
    for layer in names:
        weight = tensors[f"{layer}.weight"]
        layers.append((weight, tensors.get(f"{layer}.bias", weight.new_zeros(len(weight)))))
    return layers
