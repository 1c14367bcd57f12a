"""A forecast of the memory that a training takes, from the model's shape and the configuration: plain arithmetic, no torch.

Weights, the optimiser with what it trains, the engines' caches, and activations. A search and an update follow each other, so
that the larger of both counts. NF4's 4.127 bits a weight are QLoRA's (Dettmers et al. 2023, section 3): 4 bits, an 8-bit scale
for each 64 weights, a 32-bit one for each 256 of those.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config.load import Config
from ..config.sections import MEMO_BYTES, LoraConfig, ModelShape, StudentModel
from ..config.train import LARGE
from ..rollouts import measures_perplexity

GIB = 1 << 30
PLENTY = 1 << 40  # of memory: nothing is small for its sake
PROMPT = 96  # tokens of the longest prompt where nobody says: a short word problem
CONTEXT, FRAGMENTATION = (
    600 << 20,
    0.06,
)  # CUDA's own: kernels and workspaces; of what torch allocates, reserved and unused
HEAD_TOKENS, HEAD_WORDS = 4096, 32_768  # the tile of logits that a loss on CUDA takes
FORWARD_BYTES = 2 * GIB  # of activations that a forward on a CPU may keep, where `train.micro_batch` says nothing
LOGIT_COPIES = 4  # of a forward's logits, in fp32
MASK_BYTES = 4  # of each pair of tokens in a critic's forward over a question's tree
EXTRA_LAYERS = 2  # of a critic that is trained whole

Parts = dict[str, tuple[float, float]]  # bytes in search, and in training


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


class Forecast:
    """What `train` by its method, or `sft`, takes of a device.

    Args:
        shape: the student's.
        cuda: whether it is a CUDA device.
        sft: nothing is searched.
        prompt: tokens of the longest prompt.
        memory: the device's bytes, which the engine's default sizes depend on.
    """

    def __init__(
        self,
        config: Config,
        spec: StudentModel,
        shape: ModelShape,
        cuda: bool,
        *,
        sft: bool = False,
        prompt: int = PROMPT,
        memory: int = PLENTY,
    ) -> None:
        self.config, self.spec, self.shape, self.cuda, self.memory = config, spec, shape, cuda, memory
        train, context = config.train, config.engine.max_context
        self.lora = (train.adapter or spec.adapter) == "lora"
        self.quantised = spec.quantization != "none"
        self.ppo = train.method == "ppo" and not sft
        self.counts = Counts.of(shape, spec.lora)
        self.width = 4 if spec.dtype == "float32" else 2  # bytes of a weight and of an activation
        self.trained_width = 4 if self.lora else self.width  # peft's adapters are fp32
        self.prompt = min(prompt, context - 1)
        self.length = min(self.prompt + config.search.max_tokens, context)  # tokens of the longest row
        # Models beside the policy in searches, each with an engine of its own: the frozen student, a value network, a PRM.
        self.others = (not sft and measures_perplexity(config)) + (config.search.value is not None) + train.process
        self.parts = {**self.weights(), **self.engines(), **self.update()}
        if cuda:
            spare = CONTEXT + FRAGMENTATION * self.peak
            self.parts["CUDA's context, fragmentation"] = (spare, spare)

    @property
    def phases(self) -> dict[str, float]:
        """Bytes at the peak of a search, and of an update."""
        search, train = (sum(part[phase] for part in self.parts.values()) for phase in (0, 1))
        return {"search": search, "train": train}

    @property
    def peak(self) -> float:
        return max(self.phases.values())

    @property
    def trained(self) -> tuple[int, int]:
        """Trained parameters of the policy, and of PPO's critic beside it: a copy with a layer more, or an adapter too."""
        count = self.counts.adapters if self.lora else self.counts.whole
        if not self.ppo:
            return count, 0
        layer = self.counts.linear // self.shape.layers + 2 * self.shape.hidden
        return count, count if self.lora else count + layer

    @property
    def policy_bytes(self) -> float:
        """The policy's weights as they are loaded."""
        counts = self.counts
        if not self.quantised:
            return counts.whole * self.width
        # On a CPU the rest are views of the file, which stays as it was read.
        rest = counts.other if self.cuda else counts.whole
        return counts.linear * (0.5 + 1 / 64 + 4 / (64 * 256)) + rest * self.width

    @property
    def narrow_bytes(self) -> float:
        """What LoRA under a CPU's autocast keeps of the frozen matrices, the head's included (`frozen.keep_narrow`)."""
        large = self.counts.whole >= LARGE and self.config.train.precision != "float32"
        if self.cuda or self.quantised or not (self.lora and large and self.width == 4):
            return 0
        return 2.0 * (self.counts.linear + self.shape.vocabulary * self.shape.hidden)

    def weights(self) -> Parts:
        """The policy's, those of models beside it, where they are no adapters over one base, and what is trained with Adam."""
        policy, critic = self.trained
        states = 2.07 if self.config.train.in_eight_bits(self.cuda, self.quantised) else 2.0 * self.trained_width
        own = {
            "weights": self.policy_bytes,
            "its matrices in bfloat16": self.narrow_bytes,
            "models beside it": 0 if self.lora else self.others * self.counts.whole * self.width,
            "adapters" if self.lora else "critic": (policy * self.lora + critic) * self.trained_width,
            "optimiser": (policy + critic) * states,
        }
        return {name: (size, size) for name, size in own.items() if size}

    def engines(self) -> Parts:
        """What each engine keeps. The policy's cache is empty while it is trained (`Engine.sleep`)."""
        config, shape, engine = self.config, self.shape, self.config.engine
        own, parts = int(engine.backend == "inprocess"), Parts()
        if engine.backend == "vllm" and self.cuda:
            parts["vLLM"] = (engine.vllm.gpu_memory * self.memory, 0)
        token = 2 * shape.layers * shape.kv_heads * shape.head_dim * self.width  # bytes of its keys and values
        capacity = max(min(engine.cache_tokens, engine.cache(self.memory) // token), 4 * engine.max_context)
        parts["prefix cache"] = ((own + self.others) * capacity * token, self.others * capacity * token)
        wanted = max(config.search.concurrent * config.search.samples, config.train.validation_size)
        rows = min(engine.rows(token * engine.max_context, self.memory), wanted)
        memo = capacity * shape.vocabulary * 4  # next-token distributions of every cached token, where they fit
        packed = engine.native == "auto" and not (self.cuda or self.quantised) and shape.plain
        # Slots grow by doubling: between the tokens of all live rows and four times as many.
        each = 2 * rows * self.length * token + memo * (memo <= MEMO_BYTES) + packed * self.counts.whole * 4
        parts["decoding"] = ((own + self.others) * each,) * 2
        return {name: sizes for name, sizes in parts.items() if any(sizes)}

    @property
    def rows(self) -> int:
        """Rows of one forward in an update."""
        train, shape = self.config.train, self.shape
        if train.micro_batch is not None or self.cuda:
            return min(train.micro_batch or PLENTY, train.optimizer.batch_size)
        length = PROMPT + self.config.search.max_tokens
        return rows_of_a_forward(train.optimizer.batch_size, length, shape.layers, shape.hidden, shape.intermediate)

    @property
    def layer_bytes(self) -> float:
        """What one layer keeps of one token for its backward: what its norms, attention and MLP multiply by."""
        sizes = matrices(self.shape)
        kept = (10.0 * self.shape.hidden + 4 * self.shape.intermediate) * self.width
        if self.lora:
            # Each adapter keeps its own input and the mask of its dropout: fp32, under autocast bf16 and bytes.
            inputs = sum(sizes[name][0] for name in self.spec.lora.targets if name in sizes)
            number, mask = (2, 1) if self.cuda and self.width == 2 else (4, 4)
            kept += inputs * (number + mask * (self.spec.lora.dropout > 0))
        return kept

    def update(self) -> Parts:
        """Activations and logits, or the gradients: they come as activations go, so that the larger of both ends counts."""
        shape, tokens = self.shape, self.rows * self.length
        one = tokens * self.layer_bytes
        kept = shape.layers * one
        if self.config.train.recomputes(self.cuda, self.quantised):
            kept = shape.layers * tokens * shape.hidden * self.width + one
        kept += tokens * shape.hidden * 2 * 4  # embedding and last norm
        kept *= 2 if self.ppo else 1  # the policy's, and its critic's
        logits = self.rows * (self.length - self.prompt) * shape.vocabulary * self.width
        if self.cuda:
            logits = (min(tokens, HEAD_TOKENS) + shape.hidden) * HEAD_WORDS * self.width
        gradients = sum(self.trained) * self.trained_width + one
        return {"activations and logits, or gradients": (0, max(kept + logits, gradients))}
