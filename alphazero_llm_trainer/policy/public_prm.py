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
from abc import ABC, abstractmethod
from collections.abc import Sequence
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
from ..types import Problem, Steps, TokenIds
from .fetch import from_hub
from .weights import Tensors, load_weights

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


class PublicPrm(ABC):
    """A verifier that scores each step by itself; the total is the least step."""

    name, checks, guides, computes = "prm", True, False, True

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    async def __call__(self, problem: Problem, prompt_ids: TokenIds, steps: Steps) -> Judgement:
        """The judgement of `steps` (lines of a response, the last one may end it) after the prompt
        that the policy read.
        """
        if not steps:
            return Judgement((), UNJUDGED)
        scores = await self.score(problem.question, [step.text.strip() for step in steps])
        return Judgement(tuple(scores), min(scores))

    @abstractmethod
    async def score(self, question: str, steps: Sequence[str]) -> list[float]:
        """How likely each step is right, of steps without line ends."""


class CausalPrm(PublicPrm):
    """A causal language model that says yes or no after each step."""

    def __init__(self, tokenizer: Any, engine: Engine) -> None:
        super().__init__(tokenizer)
        self.engine = engine

    @property
    def scored_tokens(self) -> int:
        """Tokens that the engine computed."""
        return self.engine.stats.computed_tokens

    async def score(self, question: str, steps: Sequence[str]) -> list[float]:
        """p(yes) / (p(yes) + p(no)) of each step."""
        prefixes = rlhflow_prefixes(self.tokenizer, question, steps)
        answers = [tag_id(self.tokenizer, answer) for answer in (GOOD, BAD)]
        asked = [(prefix, (token,)) for prefix in prefixes for token in answers]
        logprobs = [logprob for [logprob] in await self.engine.score(asked)]
        return [
            1 / (1 + math.exp(b - a)) for a, b in zip(logprobs[::2], logprobs[1::2], strict=True)
        ]


class ClassifierPrm(PublicPrm):
    """Class 1 of 2, read off a backbone's states at the separators.

    `layers` are (weight, bias) pairs with a ReLU between them.
    """

    def __init__(
        self, tokenizer: Any, backbone: Any, layers: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        super().__init__(tokenizer)
        self.backbone, self.layers, self.scored_tokens = backbone, layers, 0

    async def score(self, question: str, steps: Sequence[str]) -> list[float]:
        """The steps' probabilities by one forward."""
        prefixes = qwen_prefixes(self.tokenizer, question, steps)
        self.scored_tokens += len(prefixes[-1])
        weight: Any = self.backbone.get_input_embeddings().weight
        ids = torch.tensor([prefixes[-1]], device=weight.device)
        with torch.inference_mode():
            # At each separator: [S, D], then [S, 2] after the head.
            states = self.backbone(input_ids=ids).last_hidden_state[
                0, [len(prefix) - 1 for prefix in prefixes]
            ]
            for i, (matrix, bias) in enumerate(self.layers):
                states = F.linear(states.relu() if i else states, matrix, bias)
            return states.float().softmax(-1)[:, 1].tolist()


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
            return ClassifierPrm(tokenizer, backbone.to(device).eval(), head_layers(folder, device))
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
    return CausalPrm(tokenizer, engine)


def head_layers(folder: Path, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The score head's layers: `score.weight` alone, or `score.0.weight` and `score.2.weight` (a
    ReLU is number 1).
    """
    tensors: Tensors = {}
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
