"""Critics as search sees them: a value network says how likely a state ends right, a PRM how likely
a step is right.

Both give one number a token, `p = sigmoid(weight . h + bias)`: h is the last hidden state (after
the last norm) at the last token of the state, or of the step. An engine of its own computes it, so
that shared prefixes are computed once.

A critic's folder holds `critic.json` (kind, figures, hashes of the other files; written last, so a
folder without it was never finished), `critic.safetensors` (`weight` `[D]` and `bias` `[1]`,
calibration included), and the layers as a model of transformers without a head. The critic of a
student that trains adapters is an adapter over the student's own layers: it belongs to the students
of one base. A head alone (`train.method: alphazero`) has no layers: it reads the policy's own
states in the policy's own engine, as AlphaZero's one network has two heads (Silver et al. 2017),
and belongs to one student.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from safetensors.torch import load_file

from ..config.load import Config
from ..config.objects import own_object
from ..engine.device import text_config
from ..engine.protocol import UNJUDGED, Engine, EngineStats, Judgement, Verifier
from ..errors import CheckpointError, ConfigError, EngineError
from ..files import read_object
from ..types import JsonObject, Problem, Steps, TokenIds
from .adapters import AdapterView, load_adapter, model_fingerprint
from .folders import is_own
from .public_prm import load_public
from .student import Student, check_kind, engine_over
from .weights import load_weights

CARD, NUMBERS, ADAPTER = "critic.json", "critic.safetensors", "adapter"
LEARNT = "learnt"  # the head of a policy under training, in place of a folder's hash
CriticKind = Literal["value", "prm"]
NAMES: dict[CriticKind, str] = {"value": "value network", "prm": "PRM"}


@dataclass(slots=True)
class Critic:
    """`engine.protocol.ValueFunction` over a critic's own engine. `card` is critic.json.

    `rollout_weight` is the fitted lambda of `Q = (1 - lambda)*Q_value + lambda*Q_rollout`: 1 where
    the value did not beat chance on held-out questions.
    """

    engine: Engine
    rollout_weight: float
    card: JsonObject
    head: str | None = None  # of a critic without an engine of its own, what the policy's must have

    @property
    def computes(self) -> bool:
        """Whether its engine computes tokens for it alone."""
        return self.head is None

    async def values(self, states: Sequence[TokenIds]) -> list[float]:
        """p in [0, 1] of the states after these tokens, prompt included. Raises EngineError where
        the policy's engine has another head by now.
        """
        if self.head is not None and self.engine.facts.get("head") != self.head:
            raise EngineError("the student has another value head by now: load this one again")
        return await self.engine.values(states)

    async def __call__(self, token_ids: TokenIds) -> float:
        """p of one state."""
        [value] = await self.values([token_ids])
        return value


class CriticVerifier:
    """`Verifier`: a step scores the critic's p after it. A response's total is a value's last p, a
    PRM's least one.

    A PRM checks steps. A value checks none: of a hard problem every state has a low one.
    """

    def __init__(self, critic: Critic, kind: CriticKind) -> None:
        self.critic, self.name, self.checks = critic, kind, kind == "prm"
        self.guides, self.computes = not self.checks, critic.computes

    @property
    def scored_tokens(self) -> int:
        """Tokens that the critic's engine computed; none where that is the policy's."""
        return self.critic.engine.stats.computed_tokens if self.computes else 0

    async def __call__(self, problem: Problem, prompt_ids: TokenIds, steps: Steps) -> Judgement:
        """The judgement of `steps` (lines of a response, the last one may end it) after the prompt
        that the policy read. Raises RequestError for a response that doesn't fit into the context.
        """
        if not steps:
            if self.checks:
                return Judgement((), UNJUDGED)
            value = await self.critic(prompt_ids)
            return Judgement((), value, values=(value,))
        states, so_far = [], prompt_ids
        for step in steps:
            so_far += step.token_ids
            states.append(so_far)
        scores = tuple(await self.critic.values(states))
        if self.checks:
            return Judgement(scores, min(scores))
        return Judgement(scores, scores[-1], frozenset(range(len(scores))), scores)


def load_value(folder: Path, student: Student, config: Config) -> Critic:
    """The value network of a folder that `value` wrote, for searches with `student`
    (`config.engine` sizes its engine), or the user's own, `file.py:NAME`: a function of the student
    that gives a function from states (their token ids, prompt included) to a p in [0, 1] of each.

    Raises:
        ConfigError: the user's own can't be loaded.
        CheckpointError: the folder isn't finished, a file of it changed, or it doesn't belong to
            this student.
    """
    if is_own(folder):
        make = own_object(str(folder), "search.value")
        return Critic(
            cast(Any, OwnNetwork(make(student), str(folder))), 0.0, {"files": str(folder)}
        )
    return load_critic(folder, student, config, "value")


class OwnNetwork:
    """What a critic asks of an engine, answered by a function of the user's own."""

    def __init__(self, function: Callable[..., Any], address: str) -> None:
        self.function, self.address, self.stats = function, address, EngineStats()

    async def values(self, states: Sequence[TokenIds]) -> list[float]:
        """p of each state. Raises ConfigError where the function gives anything else."""
        values = [float(value) for value in self.function(states)]
        if len(values) != len(states) or not all(0 <= value <= 1 for value in values):
            raise ConfigError(
                f"search.value {self.address} gives {values[:3]} for {len(states)} states: give a "
                "number in [0, 1] for each"
            )
        self.stats.computed_tokens += sum(map(len, states))
        return values


def load_prm(folder: Path, student: Student, config: Config) -> Verifier:
    """The verifier of a folder that `prm` wrote, or of a public PRM where `train.critic.format`
    names its format.

    Raises CheckpointError as `load_value` does.
    """
    if config.train.critic.format is not None and not (folder / CARD).is_file():
        return load_public(folder, config.train.critic.format, config)
    return CriticVerifier(load_critic(folder, student, config, "prm"), "prm")


def load_critic(folder: Path, student: Student, config: Config, kind: CriticKind) -> Critic:
    """The critic in `folder`. Raises CheckpointError as `load_value` does."""
    card = read_card(folder, kind)
    tensors = load_file(folder / NUMBERS)
    weight, bias = tensors["weight"].float(), float(tensors["bias"])
    shape = text_config(student.model)
    width, words = shape.hidden_size, shape.vocab_size
    if weight.shape != (width,) or card["vocabulary"] != words:
        raise CheckpointError(
            f"{NAMES[kind]} {folder} is of width {weight.numel()} for {card['vocabulary']} tokens, "
            f"student {student.name} has {width} and {words}: train one for this student"
        )
    own = bool(card.get("head"))
    if own and card["base"] != model_fingerprint(student.model):
        raise CheckpointError(
            f"{NAMES[kind]} {folder} reads the states of the student that it was trained on, and "
            f"student {student.name} has other weights: name that student's folder with --model, "
            f"or remove {folder} where its student was changed"
        )
    engine: Engine = student.engine
    if not own:
        engine = engine_over(read_network(folder, student, card), student, config)
    engine.set_value(weight, bias)
    head = card["files"][NUMBERS] if own else None
    if own:
        engine.facts["head"] = head
    return Critic(engine, card["rollout_weight"], card, head)


def read_card(folder: Path, kind: CriticKind) -> JsonObject:
    """critic.json, after a check of every file it names."""
    name = f"{NAMES[kind]} {folder}"
    try:
        card = read_object(folder / CARD)
    except OSError as error:
        public = ", or set train.critic.format for a public PRM" if kind == "prm" else ""
        raise CheckpointError(
            f"{name} has no {CARD}: name a folder that `{kind}` finished{public}"
        ) from error
    except ValueError:
        card = {}
    if not {"kind", "base", "rollout_weight", "vocabulary", "files"} <= card.keys():
        raise CheckpointError(f"{name} has a broken {CARD}: train it again")
    if card["kind"] != kind:
        raise CheckpointError(
            f"{name} is a {NAMES.get(card['kind'], card['kind'])}: "
            f"name a folder that `{kind}` wrote"
        )
    for file, expected in card["files"].items():
        try:
            digest = file_hash(folder / file)
        except OSError as error:
            raise CheckpointError(f"{name} lacks {file}: train it again") from error
        if digest != expected:
            raise CheckpointError(f"{name} has a truncated or changed {file}: train it again")
    return card


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_network(folder: Path, student: Student, card: JsonObject) -> Any:
    """The network as an engine takes it: a causal model of its backbone, or the student's layers
    under its adapter.
    """
    if (folder / ADAPTER).is_dir():
        if card["base"] != model_fingerprint(student.model, None):
            raise CheckpointError(
                f"critic {folder} is an adapter trained on other weights than student "
                f"{student.name} has: name that student's folder, or train a critic for this one"
            )
        hashes = "".join(f"{file}{digest}" for file, digest in sorted(card["files"].items()))
        name = f"{card['kind']}-{hashlib.sha256(hashes.encode()).hexdigest()[:8]}"
        load_adapter(student.model, folder / ADAPTER, name)
        return AdapterView(student.model, name)
    from transformers import AutoModel, AutoModelForCausalLM

    check_kind(str(folder))
    precision = getattr(torch, student.spec.dtype)
    network: Any = load_weights(AutoModel, str(folder), dtype=precision)
    weight: Any = student.model.get_input_embeddings().weight
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(network.config, trust_remote_code=False)
    # The student's own output layer stands in for one that nobody asks here.
    setattr(model, model.base_model_prefix, network.to(weight.device))
    model.set_output_embeddings(student.model.get_output_embeddings())
    return model.eval()
