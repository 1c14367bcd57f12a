"""The last layer of a language model on a CPU: log-probabilities of labels, computed only where there is a label.

TRL's head projects every position where there is no Triton, questions and padding too, and its gradients are products in
fp32. With a vocabulary of tens of thousands that is most of an update (`benchmarks/real_training.py`).
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial
from trl.trainer.utils import FusedCausalLMOutput

TILE = 2**19  # logits in fp32 at a time: 2 MiB, which stay in a core's cache
LEAST = -1e4  # of a logarithm whose probability is 0 in fp32
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
        logprobs, entropy, normalizer = (torch.empty(len(hidden)) for _ in range(3))
        best = torch.empty(len(hidden), dtype=torch.bool)
        with torch.autocast("cpu", enabled=False):
            logits = narrow @ matrix.T if any(ctx.needs_input_grad[:2]) else None
            for rows in tiles(len(hidden), len(matrix)):
                tile = scaled(narrow[rows] @ matrix.T if logits is None else logits[rows], temperature)
                own, most = tile.gather(1, targets[rows, None])[:, 0], tile.amax(1)
                # A probability of 0 may have the logarithm -inf, and has no share of the entropy.
                masses = tile.sub_(most[:, None]).clamp_(min=LEAST).exp()
                mass = masses.sum(1)
                logprobs[rows], best[rows] = own - most - mass.log(), own >= most
                entropy[rows] = mass.log() - masses.mul_(tile).sum(1) / mass
                normalizer[rows] = most + mass.log()
        ctx.save_for_backward(narrow, matrix, targets, entropy, normalizer)
        ctx.logits, ctx.temperature, ctx.given = logits, temperature, (hidden.dtype, weight.dtype)
        ctx.mark_non_differentiable(best)
        ctx.set_materialize_grads(False)
        return logprobs, entropy, best

    @staticmethod
    def backward(
        ctx: Any, of_logprobs: torch.Tensor | None, of_entropy: torch.Tensor | None, _: None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        narrow, matrix, targets, entropy, normalizer = ctx.saved_tensors
        gradient, ctx.logits = ctx.logits, None
        with_label = torch.zeros_like(entropy) if of_logprobs is None else of_logprobs / ctx.temperature
        for rows in tiles(len(narrow), len(matrix)):
            tile = scaled(gradient[rows], ctx.temperature).sub_(normalizer[rows, None])
            if of_entropy is None:
                tile.exp_().mul_(-with_label[rows, None])
            else:
                chances = tile.clamp_(min=LEAST).exp()
                tile.add_(entropy[rows, None]).mul_(-of_entropy[rows, None] / ctx.temperature)
                tile.sub_(with_label[rows, None]).mul_(chances)
            tile.scatter_add_(1, targets[rows, None], with_label[rows, None])
            gradient[rows] = tile
        of_hidden = (gradient @ matrix).to(ctx.given[0]) if ctx.needs_input_grad[0] else None
        of_weight = (gradient.T @ narrow).to(ctx.given[1]) if ctx.needs_input_grad[1] else None
        return of_hidden, of_weight, None, None


def tiles(count: int, words: int) -> Iterator[slice]:
    """Slices of `count` rows of logits, as many rows in each as a tile has room for."""
    size = max(1, TILE // words)
    return (slice(start, start + size) for start in range(0, count, size))


def scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """A copy of logits in fp32, over the temperature."""
    tile = logits.to(torch.float32, copy=True)
    return tile if temperature == 1.0 else tile.div_(temperature)


def plain(model: Any) -> bool:
    """Whether a causal model's head is a product and nothing else."""
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    return head is not None and head.bias is None and all(getattr(config, name, None) is None for name in SCALES)


def token_logprobs(model: Any, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities (nats, `[N]`) of `tokens [N]` under the model's head over `hidden [N, H]`."""
    head = model.get_output_embeddings()
    if hidden.device.type == "cpu" and plain(model):
        return LabelLogProbs.apply(hidden, head.weight, tokens, 1.0)[0]
    logits = head(hidden).float()
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)


def project_labels_only(model: Any, temperature: float = 1.0) -> None:
    """Give a model that TRL's trainer has patched a head of its own for forwards on a CPU (`fused_lm_head=True`).

    The answer is TRL's `FusedCausalLMOutput` with `log_probs`, `entropy`, `is_top1` and `label_mask`, `[B, T - 1]`, zero
    where there is no label. A model whose head does more than a product keeps TRL's, as does one on another device.
    """
    trls = model.forward
    if not plain(model) or getattr(model.config.get_text_config(), "output_router_logits", False):
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
