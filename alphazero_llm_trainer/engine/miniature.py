"""Whether a forward of ours is an architecture's own, tried on a small random model of the same
configuration.

Its layers are of the same kinds, and windows that the context exceeds are a few tokens long. So it
takes a fraction of a second to tell whether caches, masks and the last layer are understood,
whatever the architecture is called.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers import logging as transformers_logging

from ..errors import EngineError
from .device import kv_shape
from .library_forward import LibraryForward
from .masks import plain_config
from .precision import why_uncovered
from .prefix_tree import PrefixTree
from .queue_rows import DecodingRow

LAYERS, HEADS, WORDS, INNER, EXPERTS = 4, 4, 96, 48, 4
MOST_KINDS = (
    4  # values that a list with an entry a layer may have: kinds of layers, no numbers of them
)
SPAN = 6  # tokens of a window
LENGTH = 4 * SPAN  # of a trial
GAP = 1e-3  # nats: fp32 has 1e-5, a wrong window tenths
TRIAL_SIZE = 150_000_000  # parameters that a trial may have

log = logging.getLogger(__name__)
_tried: dict[
    tuple[str, ...], float | None
] = {}  # gaps by trial and configuration, None where a trial ended in an error


def try_miniature(model: Any, context: float, gap: Callable[[Any], float]) -> float | None:
    """`gap` (nats) of a small copy of `model`, once for each configuration; None where an error
    ended it. `context` is how many tokens a sequence may have.
    """
    key = (
        gap.__name__,
        type(getattr(model, "shared", model)).__name__,
        model.config.to_json_string(),
        str(context),
    )
    if key not in _tried:
        verbosity = transformers_logging.get_verbosity()
        transformers_logging.set_verbosity(logging.CRITICAL)
        try:
            _tried[key] = gap(make_miniature(model, context))
        except Exception as error:  # any at all: this architecture isn't understood
            log.debug("a trial of %s ended", key[1], exc_info=error)
            _tried[key] = None
        finally:
            transformers_logging.set_verbosity(verbosity)
    return _tried[key]


def check_forward(model: Any, context: int) -> None:
    """Raise EngineError for a model that `LibraryForward` doesn't compute as transformers does in
    `context` tokens at most.
    """
    if is_plain(model):
        return
    gap = try_miniature(model, context, engine_gap)
    if gap is not None and gap <= GAP:
        return
    reason = (
        "keeps no cache of its kind"
        if gap is None
        else f"is {gap:.2g} nats from transformers' own log-probabilities"
    )
    raise EngineError(
        f"a {type(getattr(model, 'shared', model)).__name__} can't be searched by the in-process "
        f"engine, which {reason}: use another student, or engine.backend=vllm"
    )


def is_plain(model: Any) -> bool:
    """Whether a model is of a kind that the C kernels compute, and its forward known."""
    return why_uncovered({**model.config.to_dict(), "quantization_config": None}) is None


# -- the small model -------------------------------------------------------------------------------


def make_miniature(model: Any, context: float) -> Any:
    """A small model of `model`'s class with random weights, in fp32 on the CPU."""
    config = plain_config(model)
    text = config.get_text_config()
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig) and part is not text:
            # An eye's or an ear's configuration: as small as it can be made.
            with suppress(AttributeError):
                shrink_shape(part, context)
    shrink_shape(text, context)
    kind = type(getattr(model, "shared", model))
    with torch.device("meta"):
        if sum(p.numel() for p in kind(copy.deepcopy(config)).parameters()) > TRIAL_SIZE:
            raise EngineError(f"a small {kind.__name__} is too large")
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(0)
        small = kind(config).float().eval()
        randomise_weights(small)
    return small


@torch.no_grad()
def randomise_weights(model: Any) -> None:
    """Give a model random weights, of a size at which each token changes what later ones see."""
    for parameter in model.parameters():
        noise = torch.randn_like(parameter)
        if parameter.ndim > 1:
            parameter.copy_(noise / parameter.shape[-1] ** 0.5)
        else:
            parameter.nan_to_num_().add_(noise, alpha=0.2)


def shrink_shape(shape: Any, context: float) -> None:
    """Make a configuration's model small in place; windows that `context` tokens exceed get `SPAN`
    tokens.
    """
    shrink_layers(shape)
    chosen = getattr(shape, "num_experts_per_tok", None) or 1
    for name, value in list(vars(shape).items()):
        least = None
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if "intermediate_size" in name or "ffn" in name or name == "n_inner":
            least = INNER
        elif name in ("num_local_experts", "num_experts", "n_routed_experts"):
            least = max(EXPERTS, chosen)
        elif name.startswith("vocab_size"):
            least = WORDS
        elif name.endswith("_token_id") and value >= WORDS:
            least = 0
        elif ("window" in name or "chunk" in name) and "layer" not in name and value < context:
            least = SPAN
        if least is not None and value > least:
            setattr(shape, name, least)
    heads = shape.num_attention_heads
    names = [name for name in ("num_key_value_heads", "num_kv_heads") if getattr(shape, name, None)]
    shared = heads // (getattr(shape, names[0]) if names else heads)
    fewer = min(heads, max(shared, HEADS // shared * shared))
    shape.hidden_size = shape.hidden_size // heads * fewer
    shape.num_attention_heads = fewer
    for name in names:
        setattr(shape, name, fewer // shared)
    rope = getattr(shape, "rope_parameters", None) or {}
    for turns in (rope, *rope.values()):  # one for all layers, or one for each kind of them
        # These turns depend on the length.
        if isinstance(turns, dict) and turns.get("rope_type") in ("longrope", "dynamic"):
            longest = turns.get("original_max_position_embeddings")
            if longest is not None and longest < context:
                turns["original_max_position_embeddings"] = (
                    shape.original_max_position_embeddings
                ) = SPAN


def shrink_layers(shape: Any) -> None:
    """Keep a configuration's first layers: of each kind that its lists name at least one."""
    layers = shape.num_hidden_layers
    kept, lists = min(layers, LAYERS), {}
    for name, value in vars(shape).items():
        if isinstance(value, list | tuple) and len(value) == layers:
            lists[name] = value
            kinds = [str(kind) for kind in value]
            if len(set(kinds)) <= MOST_KINDS:
                kept = max(kept, *(kinds.index(kind) + 1 for kind in set(kinds)))
    shape.num_hidden_layers = kept
    for name, value in lists.items():
        setattr(shape, name, value[:kept])


def words_of(small: Any) -> torch.Tensor:
    """Two sequences `[2, LENGTH]` of random tokens with one beginning of `SPAN`."""
    some = torch.Generator().manual_seed(1)
    words = torch.randint(1, small.config.get_text_config().vocab_size, (2, LENGTH), generator=some)
    words[1, :SPAN] = words[0, :SPAN]
    return words


@torch.no_grad()
def own_logprobs(small: Any, words: torch.Tensor) -> torch.Tensor:
    """Log-probabilities `[B, T, V]` of a model's own forward, each sequence by itself."""
    rows = [
        small(input_ids=row[None], use_cache=False).logits.float().log_softmax(-1) for row in words
    ]
    return torch.cat(rows)


def engine_gap(small: Any) -> float:
    """How far (nats) `LibraryForward`'s log-probabilities are from those of a small model's own
    forward at most.

    The two sequences are computed in pieces and side by side, as a search asks for them.
    """
    shape, words = small.config.get_text_config(), words_of(small)
    tree = PrefixTree(
        4 * LENGTH,
        shape.num_hidden_layers,
        *kv_shape(shape),
        shape.vocab_size,
        memo_bytes=1 << 30,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    assert tree.next_logprobs is not None
    forward, own = LibraryForward(small, tree), own_logprobs(small, words)
    forward.decoder.fixed = True  # as on CUDA
    paths = [tree.walk(row) for row in words.tolist()]
    # How far each sequence is known after each forward: prefixes, pieces behind them, then token by
    # token.
    known = [(SPAN, SPAN), (2 * SPAN, SPAN + 1), (LENGTH - 4, 2 * SPAN)]
    known += [(LENGTH - 4 + i, 2 * SPAN + i) for i in range(1, 5)]
    gap = 0.0
    forward.compute([DecodingRow(paths[0][:SPAN], 0)])
    for starts, ends in itertools.pairwise(known):
        forward.compute(
            [DecodingRow(path[a:b], a) for path, a, b in zip(paths, starts, ends, strict=True)]
        )
        for row, path, end in zip(own, paths, ends, strict=True):
            apart = (tree.next_logprobs[path[end - 1]] - row[end - 1]).abs().max()
            gap = max(gap, float(apart.nan_to_num(math.inf)))
    return gap
