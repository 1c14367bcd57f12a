"""Log-probabilities of rows' responses under a language model, with gradients: a sequence a row, or
packed.

The last layer is computed only where a token is predicted that counts: with a vocabulary of 50,000
words and more it is most of an update.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial

from ..engine.device import tell_once
from ..engine.last_layer import LastLayer
from ..engine.masks import DENSE, FLEX
from ..engine.miniature import GAP, SPAN, is_plain, own_logprobs, try_miniature, words_of
from ..errors import ConfigError
from .packing import Plan, Work, plan_rows
from .train_row import TrainRow, TrainRows

TILES = {"cpu": 2**19}  # logits in fp32 at a time: 2 MiB, which stay in a core's cache
LOGITS_TILE = 2**26  # elsewhere: 256 MiB
LEAST_LOG = -1e4  # of a logarithm whose probability is 0 in fp32
TOGETHER = Work(1.0, 0.0)  # by which all that can be shared is
PACKS_FROM = (
    0.9  # share of the unpacked rows' work that packing must come down to, under `pack: auto`
)


class LabelLogProbs(torch.autograd.Function):
    """Log-probabilities and entropies (nats, `[N]`) of `targets [N]` under softmax(`hidden [N, H]`
    @ `weight [V, H]`.T).

    The logits are kept for the backward pass in the precision that autocast asks for, and become
    their own gradient in place: `g * (onehot - p)`. The entropies have no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        kind = hidden.device.type
        precision = (
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        )
        narrow, matrix = hidden.to(precision), weight.to(precision)
        logprobs, entropy, normalizer = (
            torch.empty(len(hidden), device=hidden.device) for _ in range(3)
        )
        with torch.autocast(kind, enabled=False):
            logits = narrow @ matrix.T if any(ctx.needs_input_grad[:2]) else None
            for rows in logit_tiles(narrow, matrix):
                tile = (narrow[rows] @ matrix.T if logits is None else logits[rows]).to(
                    torch.float32, copy=True
                )
                own, most = tile.gather(1, targets[rows, None])[:, 0], tile.amax(1)
                # A probability of 0 may have the logarithm -inf, and has no share of the entropy.
                masses = tile.sub_(most[:, None]).clamp_(min=LEAST_LOG).exp()
                mass = masses.sum(1)
                logprobs[rows] = own - most - mass.log()
                entropy[rows] = mass.log() - masses.mul_(tile).sum(1) / mass
                normalizer[rows] = most + mass.log()
        ctx.save_for_backward(narrow, matrix, targets, normalizer)
        ctx.logits, ctx.dtypes = logits, (hidden.dtype, weight.dtype)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor, _: None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        narrow, matrix, targets, normalizer = ctx.saved_tensors
        logits, ctx.logits = ctx.logits, None
        for rows in logit_tiles(narrow, matrix):
            chances = logits[rows].to(torch.float32, copy=True).sub_(normalizer[rows, None]).exp_()
            chances.mul_(-gradient[rows, None])
            chances.scatter_add_(1, targets[rows, None], gradient[rows, None])
            logits[rows] = chances
        of_hidden = (logits @ matrix).to(ctx.dtypes[0]) if ctx.needs_input_grad[0] else None
        of_weight = (logits.T @ narrow).to(ctx.dtypes[1]) if ctx.needs_input_grad[1] else None
        return of_hidden, of_weight, None


def logit_tiles(hidden: torch.Tensor, weight: torch.Tensor) -> Iterator[slice]:
    """Slices of the rows of logits `[N, V]`, as many rows in each as a tile has room for."""
    size = max(1, TILES.get(hidden.device.type, LOGITS_TILE) // len(weight))
    return (slice(start, start + size) for start in range(0, len(hidden), size))


@torch.no_grad()
def has_plain_head(model: Any) -> bool:
    """Whether a causal model's logits are a product of its hidden states and nothing else: no bias,
    no scale, no cap.
    """
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear or head.bias is not None:
        return False
    # As large that a cap shows.
    hidden = torch.full(
        (1, head.in_features), 100, dtype=head.weight.dtype, device=head.weight.device
    )
    product = head(hidden).float()
    try:
        logits = LastLayer(model)(hidden).float()
    except (AttributeError, TypeError):  # its own forward asks more of its backbone
        return False
    return bool((logits - product).norm() <= 0.01 * product.norm())


class Scorer(torch.nn.Module):
    """A causal language model as the module that is trained: what DDP and FSDP wrap.

    `forward` gives log-probabilities and entropies (nats, `[M]`) of the predicted tokens of a
    `packing.Forward`, and with a `value` its logits (`[M]`) of the states before them.
    """

    def __init__(self, model: Any, value: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.model, self.value, self.plain = model, value, has_plain_head(model)
        self._no_split_modules = model._no_split_modules  # where accelerate looks for FSDP's layers

    @property
    def config(self) -> Any:
        return self.model.config

    def forward(
        self, at: torch.Tensor, labels: torch.Tensor, **inputs: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """`labels [M]` are predicted at places `at [M]` of the flattened positions `[G * N]`;
        `inputs` are the model's own.
        """
        model = self.model
        if not self.plain:
            made = model(**inputs, use_cache=False, output_hidden_states=self.value is not None)
            every = made.logits.flatten(0, 1).index_select(0, at).float().log_softmax(-1)
            entropy = -(every.exp() * every).sum(-1).detach()
            logprobs = every.gather(1, labels[:, None])[:, 0]
            if self.value is None:
                return logprobs, entropy
            hidden = made.hidden_states[-1].flatten(0, 1).index_select(0, at)
            return logprobs, entropy, self.value(hidden)[:, 0]
        hidden = (
            model.base_model(**inputs, use_cache=False)
            .last_hidden_state.flatten(0, 1)
            .index_select(0, at)
        )
        weight = model.get_output_embeddings().weight
        if isinstance(weight, DTensor):  # a head that FSDP shards apart from the layers before it
            # Each rank's gradient is of its own rows.
            weight = weight.full_tensor(grad_placements=[Partial("avg")])
        scores: tuple[torch.Tensor, torch.Tensor] = LabelLogProbs.apply(hidden, weight, labels)
        return scores if self.value is None else (*scores, self.value(hidden)[:, 0])


@dataclass(frozen=True, slots=True)
class Scores:
    """Of rows' response tokens `[B, T]`, 0 beyond a row's end: log-probabilities and entropies in
    nats.

    `packed` is the share that was computed of the tokens of a sequence a row; `values` are the
    value's logits of the states before the tokens, where one is trained.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    packed: float = 1.0
    values: torch.Tensor | None = None


def score_rows(
    scorer: Any, config: Any, rows: TrainRows, pack: str, dtype: torch.dtype, device: Any
) -> Scores:
    """The scores of `rows` under `scorer` (a `Scorer`, perhaps in DDP's or FSDP's hands) over a
    model of `config`.

    Args:
        pack: `on`: rows share their beginnings; `off`: a sequence a row; `auto`: what is less work.
        dtype: of the additive masks of packed sequences.
    """
    apart = plan_rows(rows, None)
    if pack != "off":
        work = Work.of(config)
        shared = plan_rows(rows, work)
        if pack == "on" or shared.work(work) < PACKS_FROM * apart.work(work):
            return score_plan(scorer, config, shared, dtype, device, shared.tokens / apart.tokens)
    return score_plan(scorer, config, apart, dtype, device)


def score_plan(
    scorer: Any, config: Any, made: Plan, dtype: torch.dtype, device: Any, packed: float = 1.0
) -> Scores:
    """The scores of rows as planned."""
    scores = [
        scorer(
            forward.at.to(device),
            forward.labels.to(device),
            **forward.inputs(config, dtype, device),
        )
        for forward in made.forwards
    ]
    logprobs, entropy, *values = (made.spread(column) for column in zip(*scores, strict=True))
    return Scores(logprobs, entropy, packed, *values)


def packed_gap(small: Any) -> float:
    """How far (nats) log-probabilities of packed rows are from those of a small model's own forward
    at most.
    """
    words, prompt = words_of(small), SPAN // 2  # so that the responses' beginnings are shared too
    rows = [TrainRow(tuple(row[:prompt]), tuple(row[prompt:]), (), ()) for row in words.tolist()]
    with torch.no_grad():
        scores = score_plan(
            Scorer(small), small.config, plan_rows(rows, TOGETHER), torch.float32, "cpu"
        ).logprobs
    own = own_logprobs(small, words)[:, prompt - 1 : -1].gather(2, words[:, prompt:, None])[..., 0]
    return float((scores - own).abs().max().nan_to_num(math.inf))


def can_pack(model: Any) -> bool:
    """Whether a model's log-probabilities are its own in packed rows, whose tokens stand apart from
    those before them.
    """
    if is_plain(model):
        return True
    gap = try_miniature(model, math.inf, packed_gap)
    return gap is not None and gap <= GAP


def choose_packing(model: Any, wanted: str, device: torch.device) -> str:
    """`wanted` of `train.pack`, or "off" where rows can't share a sequence or lose by it: then with
    a word. Raises ConfigError where it is "on" and they can't.
    """
    if wanted == "off":
        return wanted
    attention = model.config._attn_implementation
    free = f"the student's attn_implementation {FLEX}"
    if wanted == "on":
        check_packs(model, "train.pack=on", "set it to auto")
        if attention not in (*DENSE, FLEX):
            raise ConfigError(
                f"train.pack is on and {attention} takes no masks of packed rows: "
                f"set it to auto, or make {free}"
            )
        return wanted
    why = None
    if not can_pack(model):
        why = f"a {type(model).__name__} isn't itself in packed rows"
    elif attention not in (*DENSE, FLEX):
        why = f"{attention} takes no masks of theirs; make {free} and they are"
    elif attention != FLEX and device.type == "cuda":
        why = f"on CUDA {attention} would hold their masks in full; make {free} and they are"
    if why is not None:
        tell_once(f"responses are not packed: {why}")
        return "off"
    return wanted


def check_packs(model: Any, wanted: str, fix: str) -> None:
    """Raise ConfigError where `wanted` needs packed rows and this model isn't itself in them."""
    if not can_pack(model):
        raise ConfigError(
            f"{wanted} needs packed rows, in which a {type(model).__name__} isn't itself: {fix}"
        )
