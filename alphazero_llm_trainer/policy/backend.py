"""Which engine serves a student (`engine.backend`), and whether what it says agrees with the
trainer's own forward.
"""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from ..config.load import Config
from ..config.sections import StudentModel
from ..engine.completions import CompletionEngine
from ..engine.inprocess import InProcessEngine
from ..engine.native import NativeLlama
from ..engine.protocol import Engine, GenerateRequest
from ..engine.vllm_weights import has_adapter
from ..errors import ConfigError, EngineError
from ..types import JsonObject, TokenIds
from .folders import GGUF

SAMPLES, TOKENS = 8, 64  # that the check at the start draws, and the most of each


def start_engine(
    model: Any, source: str, spec: StudentModel, config: Config, tokenizer: Any, **ends: Any
) -> CompletionEngine:
    """The vLLM engine that `engine.backend` names, over the weights of `source` (a folder or hub
    id, `model`'s own).

    `ends` are the tokens that end responses and lines, as the engine's class takes them.

    Raises:
        ConfigError: vLLM is not installed, or can't do on this machine what the configuration
            wants.
        EngineError: vLLM can't start, or the server isn't one for this student.
    """
    settings, adapter = config.engine, config.train.adapter or spec.adapter
    if settings.backend == "vllm":
        if source.endswith(GGUF):
            raise ConfigError(
                f"engine.backend is 'vllm' and {source} a GGUF file: "
                "use 'inprocess', or a folder of it"
            )
        from ..engine.vllm_engine import VllmEngine
        from ..engine.vllm_launch import launch_for

        engine: CompletionEngine = VllmEngine(
            model, launch=launch_for(model, source, spec, adapter, settings), **ends
        )
    else:
        from ..engine.vllm_server import ServerEngine

        engine = ServerEngine(model, tokenizer, settings=settings, adapter=adapter, **ends)
    if has_adapter(model):
        engine.set_policy(None, 0)
    return engine


# How far an engine's log-probabilities may be from the trainer's own, in nats. SmolLM2-135M (30
# layers), over 5,000 tokens of 13 prompts in bfloat16: .011 in the mean and .12 at most as it
# comes, .018 and .69 after supervised training. A kernel that computes something else is nats away
# in the mean. A single token may be far off where it is unlikely, so the 99th percentile counts.
GAP_MEAN, GAP_P99 = 0.05, 0.5


def check_rounding(engine: Engine, model: Any, prompt: TokenIds) -> None:
    """Where the in-process engine multiplies in bfloat16, and the model in fp32: `check_numerics`,
    into `engine.facts`.
    """
    if (
        isinstance(engine, InProcessEngine)
        and isinstance(engine.forward, NativeLlama)
        and engine.forward.rounds
    ):
        engine.facts["numerics"] = check_numerics(engine, model, prompt)


def check_update(engine: Engine, model: Any, prompt: TokenIds) -> None:
    """`check_numerics` again, where the start had it, into `engine.facts`: an adapter that was zero
    then isn't after an update. One process alone does: sharded weights have no forward of their
    own.
    """
    known = engine.facts.get("numerics")
    if known is None or torch.distributed.is_initialized():
        return
    when = f" with the weights of round {engine.version}"
    known["after_updates"] = check_numerics(engine, model, prompt, when)
    known["after_updates"]["version"] = engine.version


def check_numerics(engine: Engine, model: Any, prompt: TokenIds, when: str = "") -> JsonObject:
    """Differences (nats) between the engine's log-probabilities and the model's own forward, as
    run.json keeps them.

    `prompt` is the token ids of QUESTION. `sampled` is of the tokens as they were drawn after it,
    `scored` of the same tokens when the engine scores them.

    Raises EngineError where a mean is above `GAP_MEAN` or a 99th percentile above `GAP_P99`; `when`
    is said there.
    """

    async def ask() -> tuple[list[Any], list[list[float]]]:
        [drawn] = await engine.generate([GenerateRequest(prompt, n=SAMPLES, max_new_tokens=TOKENS)])
        return drawn, await engine.score([(prompt, sample.token_ids) for sample in drawn])

    drawn, scored = asyncio.run(ask())
    sampled_gaps, scored_gaps = [], []
    for sample, scores in zip(drawn, scored, strict=True):
        own = trainer_logprobs(model, prompt, sample.token_ids)
        sampled_gaps += [abs(a - b) for a, b in zip(own, sample.logprobs, strict=True)]
        scored_gaps += [abs(a - b) for a, b in zip(own, scores, strict=True)]
    facts: JsonObject = {"tokens": len(sampled_gaps)}
    for name, gaps in (("sampled", sampled_gaps), ("scored", scored_gaps)):
        mean, p99 = sum(gaps) / len(gaps), sorted(gaps)[int(0.99 * (len(gaps) - 1))]
        facts |= {f"{name}_mean": mean, f"{name}_p99": p99, f"{name}_max": max(gaps)}
        # Written so that a NaN is refused too.
        if not (mean <= GAP_MEAN and p99 <= GAP_P99):
            fix = "set engine.dtype=float32"
            if isinstance(engine, CompletionEngine):
                fix = "serve the student's own weights in its own precision"
            raise EngineError(
                f"log-probabilities that {engine.facts['backend']} {name} differ from the "
                f"trainer's forward by {mean:.3g} nats in the mean and {p99:.3g} at the 99th "
                f"percentile of {len(gaps)} tokens{when}: {fix}"
            )
    return facts


def trainer_logprobs(model: Any, prompt: TokenIds, response: TokenIds) -> list[float]:
    """Log-probabilities `[T]` of `response` after `prompt` by the model's own forward."""
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor([prompt + response], device=device)
    training = model.training
    model.eval()
    with torch.no_grad():
        # [T, V]: each position's next token
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
    model.train(training)
    rows = torch.log_softmax(logits, dim=-1)
    return rows.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
