"""The last layer of a language model on a CPU: log-probabilities of labels, computed only where there is a label.

TRL's head projects every position where there is no Triton, questions and padding too, and its gradients are products in
fp32. With a vocabulary of tens of thousands that is most of an update (`benchmarks/real_training.py`).
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial
from trl.trainer.utils import FusedCausalLMOutput

ROWS = 64  # of logits in fp32 at a time: 64 x 49,152 are 12 MiB, which stay in a cache
# What a model may do with its logits beside a product: those that do keep TRL's head.
SCALES = ("final_logit_softcapping", "logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")


class LabelLogProbs(torch.autograd.Function):
    """Log-probabilities and entropies (nats, `[N]`) of `targets [N]` under softmax(`hidden [N, H]` @ `weight [V, H]`.T / T).

    The third output tells whether a target is the most likely token. The logits are kept for the backward pass in the
    precision that autocast asks for, and become their own gradient in place: `g * (onehot - p)` of a log-probability,
    `-g * p * (log p + entropy)` of an entropy.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        precision = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
        narrow, matrix = hidden.to(precision), weight.to(precision)
        logprobs, entropy = torch.empty(len(hidden)), torch.empty(len(hidden))
        best = torch.empty(len(hidden), dtype=torch.bool)
        with torch.autocast("cpu", enabled=False):
            logits = narrow @ matrix.T if any(ctx.needs_input_grad[:2]) else None
            for start in range(0, len(hidden), ROWS):
                rows = slice(start, start + ROWS)
                tile = narrow[rows] @ matrix.T if logits is None else logits[rows]
                tile = (tile.float() / temperature).log_softmax(1)
                own = tile.gather(1, targets[rows, None])[:, 0]
                logprobs[rows], best[rows] = own, own >= tile.amax(1)
                # A probability of 0 has the logarithm -inf, and no share of the entropy.
                entropy[rows] = -(tile.exp() * tile.clamp(min=torch.finfo(tile.dtype).min)).sum(1)
        ctx.save_for_backward(narrow, matrix, targets, entropy)
        ctx.logits, ctx.temperature, ctx.given = logits, temperature, (hidden.dtype, weight.dtype)
        ctx.mark_non_differentiable(best)
        ctx.set_materialize_grads(False)
        return logprobs, entropy, best

    @staticmethod
    def backward(
        ctx: Any, of_logprobs: torch.Tensor | None, of_entropy: torch.Tensor | None, _: None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        narrow, matrix, targets, entropy = ctx.saved_tensors
        gradient, ctx.logits = ctx.logits, None
        for start in range(0, len(narrow), ROWS):
            rows = slice(start, start + ROWS)
            logs = (gradient[rows].float() / ctx.temperature).log_softmax(1)
            chances = logs.exp()
            tile = torch.zeros_like(chances)
            if of_logprobs is not None:
                tile.addcmul_(chances, of_logprobs[rows, None], value=-1.0)
                tile.scatter_add_(1, targets[rows, None], of_logprobs[rows, None])
            if of_entropy is not None:
                slope = chances * (logs.clamp(min=torch.finfo(logs.dtype).min) + entropy[rows, None])
                tile.addcmul_(slope, of_entropy[rows, None], value=-1.0)
            gradient[rows] = tile / ctx.temperature
        of_hidden = (gradient @ matrix).to(ctx.given[0]) if ctx.needs_input_grad[0] else None
        of_weight = (gradient.T @ narrow).to(ctx.given[1]) if ctx.needs_input_grad[1] else None
        return of_hidden, of_weight, None, None


def project_labels_only(model: Any, temperature: float = 1.0) -> None:
    """Give a model that TRL's trainer has patched a head of its own for forwards on a CPU (`fused_lm_head=True`).

    The answer is TRL's `FusedCausalLMOutput` with `log_probs`, `entropy`, `is_top1` and `label_mask`, `[B, T - 1]`, zero
    where there is no label. A model whose head does more than a product keeps TRL's, as does one on another device.
    """
    trls, head = model.forward, model.get_output_embeddings()
    config = model.config.get_text_config()
    if head is None or head.bias is not None or any(getattr(config, name, None) is not None for name in SCALES):
        return
    if getattr(config, "output_router_logits", False):
        return

    def forward(
        self: Any, *args: Any, fused_lm_head: bool = False, labels: Any = None, shift_labels: Any = None, **inputs: Any
    ) -> Any:
        wanted = labels if shift_labels is None else shift_labels
        if not fused_lm_head or wanted is None or wanted.device.type != "cpu":
            given = {"labels": labels, "shift_labels": shift_labels, "fused_lm_head": fused_lm_head}
            return trls(*args, **given, **inputs)
        inputs.pop("num_items_in_batch", None)
        hidden = self.base_model(*args, **{**inputs, "use_cache": False}).last_hidden_state
        if shift_labels is None:
            hidden, wanted = hidden[:, :-1], wanted[:, 1:]
        mask = wanted != -100
        weight = self.get_output_embeddings().weight
        if isinstance(weight, DTensor):  # a head that FSDP shards apart from the layers before it
            weight = weight.full_tensor(grad_placements=[Partial("avg")])  # each rank's gradient is of its own rows
        found = LabelLogProbs.apply(hidden[mask], weight, wanted[mask], temperature)
        # `masked_scatter` leaves a batch without a label connected to the model: its gradient is 0, not an error.
        logprobs, entropy, best = (one.new_zeros(mask.shape).masked_scatter(mask, one) for one in found)
        return FusedCausalLMOutput(
            loss=-logprobs.sum() / mask.sum().clamp(min=1),
            log_probs=logprobs, entropy=entropy, is_top1=best, label_mask=mask,
        )  # fmt: skip

    model.forward = types.MethodType(forward, model)
