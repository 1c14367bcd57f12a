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

Stage = Literal["train", "sft", "value", "prm"]

GIB = 1 << 30
PLENTY = 1 << 40  # of memory: nothing is small for its sake
PROMPT = 96  # tokens of the longest prompt where nobody says: a short word problem
PHASES = ("search", "train")
CONTEXT = 600 << 20  # CUDA's own: kernels, cuBLAS workspaces
FRAGMENTATION = 0.06  # of what torch allocates, reserved and unused
HEAD_TOKENS, HEAD_WORDS = 4096, 32_768  # the tile of logits that a loss on CUDA takes
NODE_BYTES = 350  # the prefix tree's links of a node
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


class Forecast:
    """What a training takes of a device.

    Args:
        shape: the student's.
        cuda: whether it is a CUDA device.
        stage: the command: `train` by its method, or `sft`, `value`, `prm`.
        prompt: tokens of the longest prompt.
        memory: the device's bytes, which the engine's default sizes depend on.
    """

    def __init__(
        self,
        config: Config,
        spec: StudentModel,
        shape: ModelShape,
        cuda: bool,
        stage: Stage = "train",
        prompt: int = PROMPT,
        memory: int = PLENTY,
    ) -> None:
        self.config, self.spec, self.shape, self.cuda, self.stage, self.memory = (
            config,
            spec,
            shape,
            cuda,
            stage,
            memory,
        )
        self.lora = (config.train.adapter or spec.adapter) == "lora"
        self.quantised = spec.quantization != "none"
        self.counts = Counts.of(shape, spec.lora)
        self.width = 2 if spec.dtype == "bfloat16" else 4  # bytes of a weight and of an activation
        self.trained_width = 4 if self.lora else self.width  # peft's adapters are fp32
        context = config.engine.max_context
        self.prompt = min(prompt, context - 1)
        self.length = min(self.prompt + config.search.max_tokens, context)  # tokens of the longest row

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
        if self.stage == "train" and config.rewards.use_student_model and config.rewards.pre_weight > 0:
            found.append("the frozen student")
        if config.search.value is not None:
            found.append("a value network")
        if self.stage == "train" and config.train.method == "grpo" and config.train.grpo.credit == "process":
            found.append("a PRM")
        return found

    @property
    def of_critic(self) -> bool:
        """Whether a value network or a PRM is trained, and no policy."""
        return self.stage in ("value", "prm")

    @property
    def extra_layers(self) -> int:
        """Layers that are trained on top of the policy's: of a critic, PPO's or one alone."""
        given = None if self.of_critic else self.config.train.ppo.extra_layers
        if given is not None:
            return given
        return 0 if self.lora else (EXTRA_LAYERS if self.of_critic else 1)

    @property
    def trained(self) -> tuple[int, int]:
        """Trained parameters of the policy, and of a critic: PPO's beside it, or one alone."""
        count = self.counts.adapters if self.lora else self.counts.whole
        critic = count + self.extra_layers * (self.counts.linear // self.shape.layers + 2 * self.shape.hidden)
        if self.of_critic:
            return 0, critic
        return count, critic if self.stage == "train" and self.config.train.method == "ppo" else 0

    def optimiser(self) -> list[Part]:
        """Adam's two moments; adapters, and a critic's own weights; the best weights so far of a critic alone."""
        policy, critic = self.trained
        both = policy + critic
        states = 2.0 * self.trained_width
        if self.of_critic:
            states += self.trained_width
        elif self.config.train.in_eight_bits(self.cuda, self.quantised):
            states = 2.07
        copies = both * self.trained_width if self.lora else critic * self.width
        parts = [Part("optimiser", f"{both / 1e6:,.1f} M trained x {states:.3g} B", both * states)]
        if copies:
            parts.append(Part("adapters" if self.lora else "critic", "weights of its own", copies))
        return parts

    # -- the engine's cache ------------------------------------------------------------------------------------------

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token."""
        return 2 * self.shape.layers * self.shape.kv_heads * self.shape.head_dim * self.width

    @property
    def capacity(self) -> int:
        """Tokens of the prefix cache."""
        engine = self.config.engine
        return max(min(engine.cache_tokens, engine.cache(self.memory) // self.token_bytes), 4 * engine.max_context)

    @property
    def batch(self) -> int:
        """Rows that the engine may decode together."""
        return self.config.engine.rows(self.token_bytes * self.config.engine.max_context, self.memory)

    @property
    def rows(self) -> int:
        """Rows that the engine has live at once, at most."""
        config, train = self.config, self.config.train
        samples = train.ppo.samples if train.method == "ppo" else train.samples
        if train.method != "ppo" and train.groups == "chain":
            samples = train.chain_samples
        wanted = max(config.search.concurrent * max(samples, config.search.samples), train.validation_size)
        return min(self.batch, wanted)

    def cache(self) -> list[Part]:
        """What each engine keeps. The policy's cache is empty while it is trained (`Engine.rest`)."""
        shape, engine, others = self.shape, self.config.engine, len(self.others())
        own = int(engine.backend == "inprocess")
        parts = []
        if engine.backend == "vllm" and self.cuda:
            phases = PHASES if engine.vllm.sleep == "off" else ("search",)
            share = engine.vllm.gpu_memory
            parts.append(Part("vLLM", f"engine.vllm.gpu_memory {share:g} of the device", share * self.memory, phases))
        tokens = f"{self.capacity:,} tokens x {self.token_bytes:,} B"
        kept = self.capacity * self.token_bytes
        if own:
            parts.append(Part("prefix cache", tokens, kept, ("search",)))
        if others:
            parts.append(Part("prefix cache", f"{others} x {tokens} beside it", others * kept))
        tokens_a_row = doubled(min(FIRST_TOKENS, engine.max_context), self.length)
        slots = doubled(min(FIRST_ROWS, self.batch), self.rows) * tokens_a_row * self.token_bytes
        each: float = slots
        if self.capacity * shape.vocabulary * 4 <= MEMO_BYTES:  # next-token distributions of every cached token
            each += self.capacity * shape.vocabulary * 4
        if engine.native == "auto" and not (self.cuda or self.lora or self.quantised) and shape.plain:
            each += self.counts.whole * 4  # the kernels' packed copy
        if not self.cuda:
            each += self.capacity * NODE_BYTES
        if own + others:
            words = f"{self.rows} rows of {self.length} tokens, next-token tables, packed weights"
            parts.append(Part("decoding", words, (own + others) * each))
            parts.append(Part("workspace", "slots are copied as they grow", slots / 2, ("search",)))
        return parts

    # -- an update ---------------------------------------------------------------------------------------------------

    def row(self) -> tuple[int, int, int]:
        """Rows of one forward, tokens of a row, and bytes of each pair of its tokens."""
        train, shape = self.config.train, self.shape
        layers, h, f = shape.layers + (self.extra_layers if self.of_critic else 0), shape.hidden, shape.intermediate
        if self.of_critic:
            critic = train.critic
            # A value's row is a question's whole tree, a PRM's a pair of sequences.
            tree = self.prompt + critic.iterations * critic.samples * self.config.search.max_tokens
            length, squares = (tree, MASK_BYTES) if self.stage == "value" else (2 * self.length, 0)
            most = rows_of_a_forward(critic.batch_size, length, layers, h, f, 0, squares)
            return train.micro_batch or most, length, squares
        size = train.sft.batch_size if self.stage == "sft" else train.settings.batch_size
        if train.micro_batch is not None:
            return min(train.micro_batch, size), self.length, 0
        if self.cuda:
            return size, self.length, 0
        return rows_of_a_forward(size, PROMPT + self.config.search.max_tokens, layers, h, f), self.length, 0

    def layer_bytes(self) -> float:
        """What one layer keeps of one token for its backward."""
        shape, s = self.shape, self.width
        h, f, q = shape.hidden, shape.intermediate, shape.heads * shape.head_dim
        kv = shape.kv_heads * shape.head_dim
        # Under a padding mask grouped keys and values are repeated for every head.
        attention = 2 * q + 2 * (q if q != kv else kv)
        if not self.lora:
            norms = 2 * (3 * 4 if s == 4 else 4 + 2 + 2) * h
            return norms + (attention + 4 * f) * s
        lora = self.spec.lora
        inputs = sum(matrices(shape)[name][0] for name in lora.targets if name in matrices(shape))
        # Each adapter keeps its own input, dropped out, and the mask; autocast rounds it to bf16.
        kept = 2 if self.cuda and s == 2 else self.trained_width
        mask = (1 if self.cuda else self.trained_width) if lora.dropout else 0
        dropped = inputs * (kept + mask) + len(lora.targets) * lora.rank * kept
        return 2 * 4 * h + (attention + 3 * f) * s + dropped

    def activations(self) -> list[Part]:
        """Activations and logits, or the gradients: they come as activations go, so that the larger of both ends counts."""
        shape = self.shape
        rows, length, squares = self.row()
        tokens, layers = rows * length, shape.layers + (self.extra_layers if self.of_critic else 0)
        one = tokens * self.layer_bytes()
        kept = layers * one
        if self.config.train.recomputes(self.cuda, self.quantised):
            kept = layers * tokens * shape.hidden * self.width + one
        kept += tokens * shape.hidden * 2 * 4 + squares * rows * length**2  # embedding and last norm; masks
        networks = 2 if self.stage == "train" and self.config.train.method == "ppo" else 1
        logits = self.logits(rows, length)
        gradients = sum(self.trained) * self.trained_width
        if networks * kept + logits < gradients + one:
            return [Part("gradients", f"of {sum(self.trained) / 1e6:,.1f} M", gradients + one, ("train",))]
        return [
            Part("activations", f"{rows} rows x {length:,} tokens", networks * kept, ("train",)),
            Part("logits", f"x {shape.vocabulary:,} words", logits, ("train",)),
        ]

    def logits(self, rows: int, length: int) -> float:
        """Bytes of logits and of what is computed of them."""
        words = self.shape.vocabulary
        if self.of_critic:
            return 0
        tokens = rows * (length - self.prompt)
        if self.cuda:
            return min(tokens, HEAD_TOKENS) * HEAD_WORDS * self.width + HEAD_WORDS * self.shape.hidden * self.width
        return tokens * words * self.width


def doubled(start: int, wanted: int) -> int:
    """`start`, doubled until it holds `wanted`: how the engine's slots grow."""
    size = start
    while size < wanted:
        size *= 2
    return size
