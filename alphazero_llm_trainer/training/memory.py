"""A forecast of the memory that a training takes, from the model's shape and the configuration: plain arithmetic, no torch.

Four things take it: weights, the optimiser with what it trains, activations, and the engine's cache. A search and an update
follow each other, so that the larger of both counts. NF4's 4.127 bits a weight are QLoRA's (Dettmers et al. 2023, section 3):
4 bits, an 8-bit scale for each 64 weights, a 32-bit one for each 256 of those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..config.load import Config
from ..config.sections import FIRST_ROWS, FIRST_TOKENS, MEMO_BYTES, LoraConfig, ModelShape, StudentModel
from ..rollouts import measures_perplexity

Stage = Literal["train", "sft"]

GIB = 1 << 30
PLENTY = 1 << 40  # of memory: nothing is small for its sake
PROMPT = 96  # tokens of the longest prompt where nobody says: a short word problem
PHASES = ("search", "train")
CONTEXT = 600 << 20  # CUDA's own: kernels, cuBLAS workspaces
FRAGMENTATION = 0.06  # of what torch allocates, reserved and unused
HEAD_TOKENS, HEAD_WORDS = 4096, 32_768  # the tile of logits that a loss on CUDA takes
FORWARD_BYTES = 2 * GIB  # of activations that a forward on a CPU may keep, where `train.micro_batch` says nothing
LOGIT_COPIES = 4  # of a forward's logits, in fp32
MASK_BYTES = 4  # of each pair of tokens in a critic's forward over a question's tree
EXTRA_LAYERS = 2  # of a critic that is trained whole


def rows_of_a_forward(
    batch: int, length: int, layers: int, hidden: int, intermediate: int, words: int = 0, squares: int = 0
) -> int:
    """Rows of `length` tokens that a forward on a CPU takes by default: a divisor of `batch`, within FORWARD_BYTES in fp32.

    `words` is the vocabulary where every token's logits are kept too, `squares` the bytes of each pair of tokens. It depends on
    the model, the configuration and the data alone, so that a run adds its gradients up in one order everywhere.
    """
    row = length * (layers * (10 * hidden + 4 * intermediate) + LOGIT_COPIES * words) * 4 + squares * length**2
    return max(size for size in range(1, batch + 1) if batch % size == 0 and (size == 1 or size * row <= FORWARD_BYTES))


def matrices(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """A layer's matrices: (inputs, outputs)."""
    h, q, kv, f = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.intermediate
    attention = {"q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h)}
    return attention | {"gate_proj": (h, f), "up_proj": (h, f), "down_proj": (f, h)}


@dataclass(frozen=True, slots=True)
class Counts:
    """Parameters: of the linear layers (which NF4 quantises), of everything else, of one set of adapters."""

    linear: int
    other: int
    adapters: int

    @classmethod
    def of(cls, shape: ModelShape, lora: LoraConfig) -> Counts:
        sizes = matrices(shape)
        linear = shape.layers * sum(inner * outer for inner, outer in sizes.values())
        other = shape.vocabulary * shape.hidden * (1 if shape.tied else 2) + (2 * shape.layers + 1) * shape.hidden
        adapters = shape.layers * lora.rank * sum(sum(sizes[name]) for name in lora.targets if name in sizes)
        return cls(linear, other, adapters)

    @property
    def whole(self) -> int:
        return self.linear + self.other

    @property
    def nf4_bytes(self) -> float:
        """Bytes of the linear layers in 4 bits, with both levels of scales."""
        return self.linear * (0.5 + 1 / 64 + 4 / (64 * 256))


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the memory: what it is, its sizes in words, bytes, and the phases in which it is there."""

    name: str
    words: str
    size: float
    phases: tuple[str, ...] = PHASES


@dataclass
class Forecast:
    """What `train` by its method, or `sft`, takes of a device.

    Args:
        shape: the student's.
        cuda: whether it is a CUDA device.
        prompt: tokens of the longest prompt.
        memory: the device's bytes, which the engine's default sizes depend on.
    """

    config: Config
    spec: StudentModel
    shape: ModelShape
    cuda: bool
    stage: Stage = "train"
    prompt: int = PROMPT
    memory: int = PLENTY

    def __post_init__(self) -> None:
        train, context = self.config.train, self.config.engine.max_context
        self.lora = (train.adapter or self.spec.adapter) == "lora"
        self.quantised = self.spec.quantization != "none"
        self.ppo = self.stage == "train" and train.method == "ppo"
        self.counts = Counts.of(self.shape, self.spec.lora)
        self.width = 2 if self.spec.dtype == "bfloat16" else 4  # bytes of a weight and of an activation
        self.trained_width = 4 if self.lora else self.width  # peft's adapters are fp32
        self.prompt = min(self.prompt, context - 1)
        self.length = min(self.prompt + self.config.search.max_tokens, context)  # tokens of the longest row

    def parts(self) -> list[Part]:
        """All parts; those of CUDA's own last."""
        parts = [*self.weights(), *self.optimiser(), *self.cache(), *self.activations()]
        if self.cuda:
            most = max(sum(part.size for part in parts if phase in part.phases) for phase in PHASES)
            spare = CONTEXT + FRAGMENTATION * most
            parts.append(Part("CUDA itself", f"its context, and {FRAGMENTATION:.0%} fragmentation", spare))
        return parts

    def at(self, phase: str) -> float:
        """Bytes at the phase's peak."""
        return sum(part.size for part in self.parts() if phase in part.phases)

    @property
    def peak(self) -> float:
        return max(map(self.at, PHASES))

    # -- weights and optimiser ---------------------------------------------------------------------------------------

    def weights(self) -> list[Part]:
        """The policy's, and those of every model beside it that shares none: all but adapters over one base."""
        counts = self.counts
        if self.quantised:
            # On a CPU the rest are views of the file, which stays as it was read.
            rest = counts.other if self.cuda else counts.whole
            words = f"{counts.linear / 1e6:,.0f} M in NF4, {rest / 1e6:,.0f} M x {self.width} B"
            parts = [Part("weights", words, counts.nf4_bytes + rest * self.width)]
        else:
            parts = [Part("weights", f"{counts.whole / 1e6:,.0f} M x {self.width} B", counts.whole * self.width)]
        others = self.others()
        if others and not self.lora:
            size = len(others) * counts.whole * self.width
            parts.append(Part("models beside it", ", ".join(others), size))
        return parts

    def others(self) -> list[str]:
        """Models beside the policy in a run's searches, each with an engine of its own."""
        config, found = self.config, []
        if self.stage == "train" and measures_perplexity(config):
            found.append("the frozen student")
        if config.search.value is not None:
            found.append("a value network")
        if self.stage == "train" and config.train.process:
            found.append("a PRM")
        return found

    @property
    def trained(self) -> tuple[int, int]:
        """Trained parameters of the policy, and of PPO's critic beside it."""
        count = self.counts.adapters if self.lora else self.counts.whole
        if not self.ppo:
            return count, 0
        extra = 0 if self.lora else 1
        return count, count + extra * (self.counts.linear // self.shape.layers + 2 * self.shape.hidden)

    def optimiser(self) -> list[Part]:
        """Adam's two moments; adapters, and a critic's own weights."""
        policy, critic = self.trained
        both = policy + critic
        eight_bits = self.config.train.in_eight_bits(self.cuda, self.quantised)
        states = 2.07 if eight_bits else 2.0 * self.trained_width
        copies = both * self.trained_width if self.lora else critic * self.width
        parts = [Part("optimiser", f"{both / 1e6:,.1f} M trained x {states:.3g} B", both * states)]
        if copies:
            parts.append(Part("adapters" if self.lora else "critic", "weights of its own", copies))
        return parts

    # -- the engine's cache ------------------------------------------------------------------------------------------

    def cache(self) -> list[Part]:
        """What each engine keeps. The policy's cache is empty while it is trained (`Engine.sleep`)."""
        shape, engine, others = self.shape, self.config.engine, len(self.others())
        own, parts = int(engine.backend == "inprocess"), []
        if engine.backend == "vllm" and self.cuda:
            share = engine.vllm.gpu_memory
            parts.append(
                Part("vLLM", f"engine.vllm.gpu_memory {share:g} of the device", share * self.memory, ("search",))
            )
        token = 2 * shape.layers * shape.kv_heads * shape.head_dim * self.width  # bytes of its keys and values
        capacity = max(min(engine.cache_tokens, engine.cache(self.memory) // token), 4 * engine.max_context)
        tokens, kept = f"{capacity:,} tokens x {token:,} B", capacity * token
        if own:
            parts.append(Part("prefix cache", tokens, kept, ("search",)))
        if others:
            parts.append(Part("prefix cache", f"{others} x {tokens} beside it", others * kept))
        if own + others:
            rows = self.rows(token)
            # Slots double as rows and their lengths grow.
            slots = doubled(FIRST_ROWS, rows) * doubled(FIRST_TOKENS, self.length) * token
            memo = capacity * shape.vocabulary * 4  # next-token distributions of every cached token, where they fit
            packed = engine.native == "auto" and not (self.cuda or self.lora or self.quantised) and shape.plain
            each = slots + (memo if memo <= MEMO_BYTES else 0) + (self.counts.whole * 4 if packed else 0)
            words = f"{rows} rows of {self.length} tokens, next-token tables, packed weights"
            parts.append(Part("decoding", words, (own + others) * each))
            parts.append(Part("workspace", "slots are copied as they grow", slots / 2, ("search",)))
        return parts

    def rows(self, token: int) -> int:
        """Rows that the engine has live at once, at most; a token's keys and values take so many bytes."""
        config, search = self.config, self.config.search
        wanted = max(search.concurrent * search.samples, config.train.validation_size)
        return min(config.engine.rows(token * config.engine.max_context, self.memory), wanted)

    # -- an update ---------------------------------------------------------------------------------------------------

    def rows_of_an_update(self) -> int:
        """Rows of one forward."""
        train, shape = self.config.train, self.shape
        size = train.optimizer.batch_size
        if train.micro_batch is not None:
            return min(train.micro_batch, size)
        if self.cuda:
            return size
        length = PROMPT + self.config.search.max_tokens
        return rows_of_a_forward(size, length, shape.layers, shape.hidden, shape.intermediate)

    def layer_bytes(self) -> float:
        """What one layer keeps of one token for its backward: what its norms, attention and MLP multiply by."""
        shape, lora, sizes = self.shape, self.spec.lora, matrices(self.shape)
        kept = (10.0 * shape.hidden + 4 * shape.intermediate) * self.width
        if (
            self.lora
        ):  # each adapter keeps its own input, dropped out, and the mask: fp32, under autocast bf16 and bytes
            inputs = sum(sizes[name][0] for name in lora.targets if name in sizes)
            kept += inputs * (3 if self.cuda and self.width == 2 else 8)
        return kept

    def activations(self) -> list[Part]:
        """Activations and logits, or the gradients: they come as activations go, so that the larger of both ends counts."""
        shape, rows, length = self.shape, self.rows_of_an_update(), self.length
        tokens = rows * length
        one = tokens * self.layer_bytes()
        kept = shape.layers * one
        if self.config.train.recomputes(self.cuda, self.quantised):
            kept = shape.layers * tokens * shape.hidden * self.width + one
        kept += tokens * shape.hidden * 2 * 4  # embedding and last norm
        kept *= 2 if self.ppo else 1  # the policy's, and its critic's
        logits = rows * (length - self.prompt) * shape.vocabulary * self.width
        if self.cuda:
            logits = (min(tokens, HEAD_TOKENS) + shape.hidden) * HEAD_WORDS * self.width
        gradients = sum(self.trained) * self.trained_width + one
        if kept + logits < gradients:
            return [Part("gradients", f"of {sum(self.trained) / 1e6:,.1f} M", gradients, ("train",))]
        return [
            Part("activations", f"{rows} rows x {length:,} tokens", kept, ("train",)),
            Part("logits", f"x {shape.vocabulary:,} words", logits, ("train",)),
        ]


def doubled(start: int, wanted: int) -> int:
    """`start`, doubled until it holds `wanted`: how the engine's slots grow."""
    return start if wanted <= start else start << ((wanted - 1) // start).bit_length()
