"""Folding adapters into a model's weights, by peft; and a check that the sum says what the two did
apart.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTuner
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..engine.masks import plain_config
from ..errors import CheckpointError, first_line
from ..files import write_json
from ..policy.adapters import (
    POLICY,
    activate_adapter,
    base_parameters,
    load_adapter,
    model_fingerprint,
    unusual_fields,
    use_adapter,
)
from ..policy.critic import CARD, read_card
from ..policy.folders import ADAPTER_CONFIG, VALUE, adapter_file
from ..policy.weights import load_tensors, load_weights, stored_dtypes

TOKENS = 9  # of the check
# Nats, in the mean over the vocabulary, that a right sum may be off. In 16 bits it is rounded once
# more than a weight and its adapter are: after long training by half of what the adapter changes,
# so that there the check sees an adapter that is missing, not one at half its scale.
GAPS = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.05}
SHARE, MOST = 0.75, 0.5  # of that change, up to so many nats: allowed in 16 bits, too
MERGE_REFUSALS = (
    OSError,
    ValueError,
    RuntimeError,
    KeyError,
    TypeError,
    AttributeError,
    ImportError,
    SafetensorError,
    UserWarning,
)


@torch.no_grad()
def bare_model(model: Any, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """A plain model (on the CPU) of `model`'s weights without its adapters; `model` stays as it is.

    4-bit weights are taken as the numbers that the forward computes with, in `dtype` (None: the
    precision of the unquantised weights): the unquantised base would be another model.

    Raises CheckpointError where the two don't say the same.
    """
    config = plain_config(model)
    if dtype is None:
        held = model.get_input_embeddings().weight.dtype
        dtype = next(iter(stored_dtypes(model).values()), held)
    state = {
        name: dense_numbers(parameter).to(device="cpu", dtype=dtype, copy=True)
        for name, parameter in base_parameters(model).items()
    }
    with torch.device("meta"):
        shell: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    shell.load_state_dict(state, strict=False, assign=True)
    shell.tie_weights()
    shell.eval()
    saved = shell.state_dict().keys()
    for name, buffer in list(shell.named_buffers()):
        owner, _, own = name.rpartition(".")
        if buffer.is_meta:
            values = model.get_buffer(name).cpu()
            shell.get_submodule(owner).register_buffer(own, values, persistent=name in saved)
    shell.config.dtype = dtype
    shell.generation_config = model.generation_config
    with use_adapter(model, None):
        expected = sample_logprobs(model)
    what = f"the {config.model_type} model without its adapters"
    check_merged(shell, expected, what, 0.0 if dtype == torch.float32 else MOST)
    return shell


def dense_numbers(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's numbers, out of 4 bits where it is stored so."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, state)


def merge_adapter(plain: Any, adapter: Path) -> PreTrainedModel:
    """`plain` itself with the adapter of a folder in its weights, of any kind that peft merges.

    An output layer that shares the embedding's weights gets its own where the adapter changes one
    of the two.

    Raises CheckpointError where peft can't merge it, or the sum says something else than the two
    apart.
    """
    held = load_tensors(adapter_file(adapter))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "Found missing adapter keys")
        try:
            before = sample_logprobs(plain)
            apart = PeftModel.from_pretrained(plain, str(adapter)).eval()
            if not isinstance(apart.base_model, BaseTuner):
                raise ValueError("it changes no weights")
            taken = get_peft_model_state_dict(apart, save_embedding_layers=True)
            ignored = sorted(held.keys() - taken.keys())
            if ignored:
                raise ValueError(f"the base has no place for {ignored[0]}")
            expected = sample_logprobs(apart)
            inner, outer = plain.get_input_embeddings(), plain.get_output_embeddings()
            tied = outer is not None and own_layer(inner).weight is own_layer(outer).weight
            if tied:
                shared = own_layer(outer).weight.detach()
                own_layer(outer).weight = torch.nn.Parameter(shared.clone())
            dtype = plain.dtype
            model: Any = apart.merge_and_unload().to(dtype)  # peft trains whole modules in fp32
        except MERGE_REFUSALS as error:
            fields = ", ".join(unusual_fields(adapter)) or "LoRA"
            raise CheckpointError(
                f"adapter {adapter} ({fields} in its {ADAPTER_CONFIG}) can't be merged "
                f"({first_line(error)}): name its own base with --model, "
                "or train one that peft can merge"
            ) from error
    weights = (
        [model.get_input_embeddings().weight, model.get_output_embeddings().weight] if tied else []
    )
    if tied and torch.equal(*weights):
        model.config.tie_word_embeddings = True
        model.tie_weights()
    allowed = 0.0 if dtype == torch.float32 else min(SHARE * mean_gap(before, expected), MOST)
    check_merged(model, expected, f"adapter {adapter}, merged,", allowed)
    return model


def own_layer(module: Any) -> Any:
    """The layer of the model's own that peft wrapped, perhaps twice."""
    for inner in ("original_module", "base_layer"):
        if getattr(module, inner, None) is not None:
            return own_layer(getattr(module, inner))
    return module


@torch.no_grad()
def sample_logprobs(model: Any) -> torch.Tensor:
    """Next-token log-probabilities `[T, V]` (fp32, on the CPU) at a few tokens from all over the
    vocabulary.
    """
    words = model.config.get_text_config().vocab_size
    ids = torch.arange(1, TOKENS + 1)[None] * (words // (TOKENS + 1))
    ids = ids.to(model.get_input_embeddings().weight.device)
    return model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1).cpu()


def mean_gap(one: torch.Tensor, other: torch.Tensor) -> float:
    """The mean distance (nats) of two `sample_logprobs`s."""
    return float((one - other).abs().mean())


def check_merged(model: Any, expected: torch.Tensor, what: str, allowed: float = 0.0) -> None:
    """Raise CheckpointError where `model` doesn't say what was `expected` (of `sample_logprobs`),
    up to its precision or to `allowed` nats.
    """
    apart = mean_gap(sample_logprobs(model), expected)
    if not apart <= max(GAPS[model.dtype], allowed):
        raise CheckpointError(
            f"{what} is {apart:.3g} nats from the model in memory: nothing is written; report it, "
            "with config.json and an adapter's adapter_config.json"
        )


def read_back(folder: Path, like: Any) -> None:
    """Raise CheckpointError where a saved model isn't the one in memory."""
    again = load_weights(AutoModelForCausalLM, str(folder), dtype=like.dtype).eval()
    check_merged(again, sample_logprobs(like), f"model {folder}, read back,")


def carry_value(adapter: Path, base: Any, plain: Any, folder: Path) -> None:
    """Take the value that the folder of an adapter over `base` carries to the `folder` of `plain`,
    the sum of the two, whose states are the same.

    Raises CheckpointError where it was learnt under another adapter, or its files changed.
    """
    if not (adapter / VALUE).is_dir():
        return
    card = read_card(adapter / VALUE, "value")
    load_adapter(base, adapter, POLICY)
    activate_adapter(base, POLICY)
    if card["base"] != model_fingerprint(base):
        raise CheckpointError(
            f"the value in {adapter / VALUE} was learnt with another adapter than {adapter} has: "
            f"remove {adapter / VALUE}, or restore the adapter"
        )
    shutil.copytree(adapter / VALUE, folder / VALUE)
    write_json(folder / VALUE / CARD, card | {"base": model_fingerprint(plain)})
