"""The model's forward over rows of the prefix tree: in C, in fused torch operations, or transformers' own for any model."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import nn
from torch.nn import functional as F

from ..config.sections import EngineConfig
from .native import NativeLlama, rotary_table
from .plain import PlainLlama
from .prefix_tree import PrefixTree
from .queue_rows import Forward
from .slots import SlotForward

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedModel


class FusedLlama(SlotForward):
    """The same function as Llama's forward with fewer, larger operations: one matrix for q, k and v, one for gate and up.

    On a CPU a small model's time is the calls, not the arithmetic. A contract test holds it to the library's forward.
    The joined matrices are copies: make a new one when the weights have changed.
    """

    name = "fused"

    def __init__(self, model: LlamaForCausalLM, tree: PrefixTree, max_batch: int, context: int) -> None:
        super().__init__(model, tree, max_batch, context)
        self.inner, shape = model.model, model.config
        self.heads: int = shape.num_attention_heads
        self.kv_heads: int = shape.num_key_value_heads or self.heads
        self.head_dim = shape.head_dim or shape.hidden_size // shape.num_attention_heads
        self.epsilon, self.width = shape.rms_norm_eps, shape.hidden_size
        self._join()

    @staticmethod
    def fits(model: PreTrainedModel) -> TypeGuard[LlamaForCausalLM]:
        """True for a Llama of plain linear layers without biases: no adapters, no quantisation."""
        if isinstance(model, PlainLlama):
            return True
        from transformers import LlamaForCausalLM

        if type(model) is not LlamaForCausalLM or model.config.hidden_act != "silu":
            return False
        rope = getattr(model.config, "rope_parameters", None) or {}
        if rope.get("rope_type", "default") not in ("default", "linear", "llama3"):  # others depend on the length
            return False
        linears = [module for name, module in model.named_modules() if name.endswith("_proj")]
        return all(type(linear) is nn.Linear and linear.bias is None for linear in linears)

    @torch.no_grad()
    def _join(self) -> None:
        """Join the layers' matrices and tabulate the rotary embedding."""
        inner = self.inner
        self.layers = []
        for layer in inner.layers:
            attention, mlp = layer.self_attn, layer.mlp
            qkv = (attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight)
            self.layers.append(
                (
                    layer.input_layernorm.weight,
                    torch.cat(qkv).t(),
                    attention.o_proj.weight.t(),
                    layer.post_attention_layernorm.weight,
                    torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).t(),
                    mlp.down_proj.weight.t(),
                )
            )
        cos, sin = rotary_table(self.inner)
        # The half-rotation's sign is folded into the sine: rotate(x) * sin = roll(x) * signed sin.
        half = cos.shape[-1] // 2
        self.cos = cos
        self.sin = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        count, width = ids.shape
        inner, window = self.inner, self.slots.window
        hidden = F.embedding(ids.reshape(-1), inner.embed_tokens.weight)
        positions = window.positions.reshape(-1)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        bias = torch.zeros(mask.shape, dtype=hidden.dtype, device=hidden.device).masked_fill_(~mask, float("-inf"))
        rotated, half = self.heads + self.kv_heads, self.head_dim // 2
        grouped = self.heads != self.kv_heads
        new = []
        for index, (norm1, qkv_weight, o_weight, norm2, up_weight, down_weight) in enumerate(self.layers):
            x = F.rms_norm(hidden, (self.width,), norm1, self.epsilon)
            qkv = (x @ qkv_weight).view(count * width, rotated + self.kv_heads, self.head_dim)
            turning = qkv[:, :rotated]
            turned = torch.addcmul(turning * cos, turning.roll(half, -1), sin)
            query = turned[:, : self.heads].view(count, width, self.heads, self.head_dim).transpose(1, 2)
            states = torch.stack((turned[:, self.heads :], qkv[:, rotated:]))
            states = states.view(2, count, width, self.kv_heads, self.head_dim).transpose(2, 3)
            keys, values = self.slots.write(index, states)
            mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=bias, enable_gqa=grouped)
            hidden = torch.addmm(hidden, mixed.transpose(1, 2).reshape(count * width, -1), o_weight)
            x = F.rms_norm(hidden, (self.width,), norm2, self.epsilon)
            gate, up = (x @ up_weight).chunk(2, dim=-1)
            hidden = torch.addmm(hidden, F.silu(gate) * up, down_weight)
            new.append(states)
        self.slots.remember(new)
        return F.rms_norm(hidden, (self.width,), inner.norm.weight, self.epsilon).view(count, width, self.width)


def make_forward(
    model: PreTrainedModel, tree: PrefixTree, settings: EngineConfig, context: int, max_batch: int
) -> Forward:
    """The fastest forward that computes the model's function here: in C, fused, or the library's.

    Its weights may be copies: make a new one when they have changed.
    """
    if not FusedLlama.fits(model):
        from .library_forward import LibraryForward

        return LibraryForward(model, tree, max_batch, context)
    if settings.native == "auto" and (native := NativeLlama.of(model, tree, settings.dtype)) is not None:
        return native
    return FusedLlama(model, tree, max_batch, context)
