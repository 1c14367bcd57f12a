"""The forward of Llama, Qwen2 and Qwen3 in plain C, called through ctypes.

`kernel_build` compiles it, `precision` says of which models and in what numbers it is.

It computes nodes of the prefix tree where they lie (`kernels/llama.c` says how), so it needs no
cache of its own, and its results are the same bits whatever else is in a batch, on any number of
threads. Without a compiler transformers takes its place.
"""

from __future__ import annotations

import ctypes
import functools
import time
import weakref
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_float, c_int, c_int64, c_uint64, c_void_p
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..errors import EngineError
from ..types import JsonObject
from .kernel_build import open_kernels
from .precision import (
    FLOATS,
    KERNEL_MODELS,
    Precision,
    kernel_threads,
    product_unit,
    unit_name,
    why_uncovered,
)
from .prefix_tree import PrefixTree
from .queue_rows import Computed, DecodingRow

if TYPE_CHECKING:
    from transformers import LlamaModel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of weights that the kernels pack


class Shape(ctypes.Structure):
    """`struct shape` of the kernel."""

    _fields_ = (
        *((name, c_int64) for name in ("layers", "width", "heads", "kv_heads", "head_dim", "ffn")),
        ("vocabulary", c_int64),
        ("positions", c_int64),
        ("rank", c_int64),
        ("epsilon", c_float),
    )


# Argument and result types of the kernels' functions.
FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "model_new": ([POINTER(Shape), POINTER(c_void_p), c_int], c_void_p),
    "model_layer": ([c_void_p, c_int64, POINTER(c_void_p), c_void_p], c_int),
    "model_free": ([c_void_p], None),
    "model_value": ([c_void_p, c_void_p, c_float], c_int),
    "forward": (
        [*[c_void_p] * 2, c_int64, *[c_void_p] * 2, c_int64, *[c_void_p] * 8, c_int64, c_int],
        c_int,
    ),
    "draw": ([c_void_p, c_int64, c_int64, *[c_void_p] * 6], None),
    "top": ([c_void_p, c_int64, c_int64, c_void_p, c_int64, *[c_void_p] * 2], None),
    "uniforms": ([c_uint64, c_uint64, c_int64, c_void_p], None),
    "large_pages": ([c_void_p, c_int64], None),
}


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """The compiled kernels (see `kernel_build`) with the types of their functions, or None where
    none can be built.
    """
    loaded = open_kernels().library
    for name, types in FUNCTIONS.items() if loaded is not None else ():
        function = getattr(loaded, name)
        function.argtypes, function.restype = types
    return loaded


def rotary_table(inner: LlamaModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine of the rotary embedding `[positions, head_dim]`."""
    positions = torch.arange(
        inner.config.max_position_embeddings, device=inner.embed_tokens.weight.device
    )
    cos, sin = inner.rotary_emb(inner.embed_tokens.weight[:1].float(), positions[None])
    return cos[0], sin[0]


def active_adapters(
    linears: Sequence[Any], active: Sequence[str] | None
) -> list[tuple[Any, torch.Tensor, torch.Tensor]]:
    """The active adapters of linear layers over one input: layer, A `[r, in]`, and B times its
    scale `[out, r]`.

    `active` None: those that each layer computes with now.
    """
    return [
        (
            linear,
            linear.lora_A[name].weight,
            linear.lora_B[name].weight.float() * linear.scaling[name],
        )
        for linear in linears
        if hasattr(linear, "lora_A")
        for name in (linear.active_adapters if active is None else active)
        if name in linear.lora_A
    ]


def with_adapters(
    linears: Sequence[Any], active: Sequence[str] | None
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """The layers' weights `[out, in + r]`, and the A's of their adapters as one `[r, in]`, of which
    their B's are multiples.

    Weights and adapters are not added up: what an adapter adds would be lost in rounding to
    bfloat16.
    """
    active_ones, weights = active_adapters(linears, active), []
    for linear in linears:
        base = getattr(linear, "base_layer", linear).weight
        columns = [
            b if own is linear else b.new_zeros(len(base), b.shape[1]) for own, _, b in active_ones
        ]
        weights.append(torch.cat([base.float(), *columns], dim=1) if columns else base)
    return weights, torch.cat([a for _, a, _ in active_ones]) if active_ones else None


def group_linears(layer: Any) -> tuple[list[Any], ...]:
    """A layer's linear layers, those over one input together."""
    attention, mlp = layer.self_attn, layer.mlp
    joined = [attention.q_proj, attention.k_proj, attention.v_proj]
    return joined, [attention.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]


def layer_weights(
    layer: Any, active: Sequence[str] | None
) -> tuple[list[torch.Tensor | None], array[int]]:
    """What `model_layer` of the kernels takes: weights in its order, and ranks."""
    groups = group_linears(layer)
    biases = [part.bias for part in groups[0] if getattr(part, "bias", None) is not None]
    norms = [getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm")]
    (qkv, out, gate_up, down), low = zip(
        *(with_adapters(linears, active) for linears in groups), strict=True
    )
    before, after = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    weights = [before, *qkv, *out, after, *gate_up, *down, torch.cat(biases) if biases else None]
    weights += [None if norm is None else norm.weight for norm in norms]
    return [*weights, *low], array("q", [0 if a is None else len(a) for a in low])


@contextmanager
def weight_addresses(weights: Sequence[torch.Tensor | None]) -> Iterator[Any]:
    """Where the weights are in fp32, None as NULL."""
    plain = [None if weight is None else weight.detach().float().contiguous() for weight in weights]
    yield (c_void_p * len(plain))(
        *(None if weight is None else weight.data_ptr() for weight in plain)
    )


class NativeLlama:
    """`queue_rows.RowForward` in C, for a model of `precision.KERNEL_MODELS` on the CPU, where
    `load_library` has the kernels. It has its own packed copy of the weights.

    `unit` is what computes its products: `precision.product_unit` of `dtype`, `engine.dtype`.
    Raises ConfigError where that can't be had.
    """

    name = "native"

    def __init__(self, model: Any, tree: PrefixTree, dtype: Precision = "auto") -> None:
        kernels = load_library()
        assert kernels is not None
        self.kernels, self.tree, self.valued = kernels, tree, False
        shared, active = getattr(model, "shared", model), getattr(model, "active", None)
        self.parameters = sum(p.numel() for p in shared.parameters())
        self.unit = product_unit(dtype, self.parameters)
        # Where the tree doesn't keep distributions: one table for all calls, a new one's pages
        # would cost more than the draws.
        self.table = torch.empty((0, tree.vocabulary))
        shape, inner = model.config, shared.model
        heads = shape.num_attention_heads
        head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // heads
        cos, sin = (table[:, : head_dim // 2] for table in rotary_table(inner))
        ranks = [
            sum(len(a) for _, a, _ in active_adapters(group, active))
            for each in inner.layers
            for group in group_linears(each)
        ]
        dimensions = Shape(
            layers=shape.num_hidden_layers,
            width=shape.hidden_size,
            heads=heads,
            kv_heads=shape.num_key_value_heads or heads,
            head_dim=head_dim,
            ffn=shape.intermediate_size,
            vocabulary=shape.vocab_size,
            positions=shape.max_position_embeddings,
            rank=max(ranks),
            epsilon=shape.rms_norm_eps,
        )
        outer = [
            inner.embed_tokens.weight,
            inner.norm.weight,
            shared.get_output_embeddings().weight,
            cos,
            sin,
        ]
        with weight_addresses(outer) as pointers:
            self.model = kernels.model_new(ctypes.byref(dimensions), pointers, self.unit)
        weakref.finalize(self, kernels.model_free, self.model)
        # One at a time: weights of half the size are copied first.
        for i, layer in enumerate(inner.layers):
            weights, sizes = layer_weights(layer, active)
            with weight_addresses(weights) as pointers:
                if not self.model or not kernels.model_layer(
                    self.model, i, pointers, sizes.buffer_info()[0]
                ):
                    raise EngineError(
                        "there is not enough memory for the engine's copy of the weights"
                    )
        kernels.large_pages(tree.states.data_ptr(), tree.states.nbytes)

    @staticmethod
    def why_not(model: Any) -> str | None:
        """Why torch must compute this model, or None where the kernels can."""
        reason = why_uncovered(model.config.to_dict())
        if reason is not None:
            return reason
        model = getattr(model, "shared", model)
        if type(model).__name__ != KERNEL_MODELS[model.config.model_type]:
            return f"the kernels don't compute a {type(model).__name__}"
        for name, module in model.named_modules():
            adapted = hasattr(module, "lora_A")
            plain = type(module.base_layer if adapted else module) is nn.Linear and not (
                adapted and module.lora_variant
            )
            if (adapted or name.endswith("_proj")) and not (plain and name.endswith("_proj")):
                return (
                    "the kernels compute no adapters but LoRA on the seven projections, and no "
                    "quantised weights"
                )
        if any(p.dtype not in DTYPES or p.device.type != "cpu" for p in model.parameters()):
            return "the kernels compute weights in float32, bfloat16 or float16 on the CPU"
        return None

    @property
    def rounds(self) -> bool:
        """True where products are in bfloat16: the model's own forward gives slightly other
        log-probabilities.
        """
        return self.unit != FLOATS

    @property
    def threads(self) -> int:
        """How many threads compute it: torch's, where it is large enough."""
        return kernel_threads(self.parameters, torch.get_num_threads())

    def facts(self) -> JsonObject:
        """What run.json says about it: its name, what it multiplies in, its threads."""
        return {"name": self.name, "products": unit_name(self.unit), "threads": self.threads}

    def set_value(self, weight: torch.Tensor | None, bias: float) -> None:
        """Have sigmoid(weight . h + bias) computed of every node's final hidden state h; None ends
        that.
        """
        plain = None if weight is None else weight.detach().to("cpu", torch.float32).contiguous()
        if not self.kernels.model_value(
            self.model, None if plain is None else plain.data_ptr(), bias
        ):
            raise EngineError("there is not enough memory for the value head")
        self.valued = plain is not None

    def release(self) -> None:
        """Give memory back that it needs while it computes. The kernels keep nothing."""

    def compute(self, rows: Sequence[DecodingRow]) -> Computed:
        """Compute rows, ancestors before descendants; the class says what is ready then. A node
        that several rows need is computed once.
        """
        tree = self.tree
        plan = _Plan(tree, rows)
        nodes, keep, target = plan.nodes, array("q", plan.keep), array("i", plan.target)
        count = len(nodes)
        table = None
        if tree.next_logprobs is not None:
            into = tree.next_logprobs.data_ptr()
        else:
            if len(self.table) < len(plan.kept):
                self.table = torch.empty((len(plan.kept), tree.vocabulary))
            table = self.table[: len(plan.kept)]
            into = table.data_ptr()
        index = array("i", nodes)
        scores, values = np.empty(count, np.float32), np.empty(count, np.float32)
        began = time.perf_counter()
        failed = self.kernels.forward(
            self.model,
            tree.states.data_ptr(),
            tree.capacity,
            tree.parent.buffer_info()[0],
            tree.token.buffer_info()[0],
            count,
            index.buffer_info()[0],
            keep.buffer_info()[0],
            target.buffer_info()[0],
            into,
            scores.ctypes.data,
            values.ctypes.data,
            None,  # no tables of likeliest tokens
            None,
            0,
            self.threads,
        )
        seconds = time.perf_counter() - began
        if failed:
            raise EngineError("there is not enough memory for a forward's paths")
        for node in nodes:
            tree.ready[node] = True
        if table is None:
            for node in plan.kept:
                tree.memoised[node] = True
        for place, node in plan.scored:
            tree.logprob[node] = float(scores[place])
        if self.valued:
            for node, value in zip(nodes, values.tolist(), strict=True):
                tree.value[node] = value
        return Computed(count, seconds, table)


class _Plan:
    """Which nodes one call of the kernel computes, each once, and what it keeps of them.

    `keep[i]` is the table's row for node i's distribution or -1, `target[i]` the token that is
    scored after it or -1. `kept` are the nodes whose distribution is kept, in the table's order
    where that isn't the tree's own; `scored` pairs a place in `nodes` with the node whose
    log-probability comes of it.
    """

    def __init__(self, tree: PrefixTree, rows: Sequence[DecodingRow]) -> None:
        self.tree, self.whole = tree, tree.next_logprobs is not None
        self.nodes: list[int] = []
        self.keep: list[int] = []
        self.target: list[int] = []
        self.kept: list[int] = []
        self.scored: list[tuple[int, int]] = []
        if all(row.riders and len(row.nodes) == 1 for row in rows):
            # Plain decoding: no node is there twice.
            self.nodes = self.kept = [row.nodes[0] for row in rows]
            self.keep = self.nodes if self.whole else list(range(len(rows)))
            self.target = [-1] * len(rows)
            return
        self.places: dict[int, int] = {}
        for row in rows:
            self._add(row)

    def _include(self, node: int) -> int:
        self.places[node] = place = len(self.nodes)
        self.nodes.append(node)
        self.keep.append(-1)
        self.target.append(-1)
        return place

    def _add(self, row: DecodingRow) -> None:
        tree, places, chain = self.tree, self.places, row.nodes
        end = chain[-1]
        if row.scoring is not None:
            for node, after in pairwise(chain):
                place, token = places.get(node), tree.token[after]
                if place is None or self.target[place] not in (-1, token):
                    place = self._include(node)
                self.target[place] = token
                self.scored.append((place, after))
        elif len(chain) > 1:
            for node in chain[:-1]:
                if not tree.ready[node] and node not in places:
                    self._include(node)
        place = places.get(end)
        if place is None:
            place = self._include(end)
        if row.riders or row.peeks or (self.whole and row.scoring is not None):
            self.keep[place] = end if self.whole else len(self.kept)
            self.kept.append(end)
