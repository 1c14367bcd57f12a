"""A forecast of the memory that a training takes, from the model's shape and the configuration:
plain arithmetic, no torch.

Weights, the optimiser with what it trains, the engines' caches, and activations. A search and an
update follow each other, so that the larger of both counts. NF4's 4.127 bits a weight are QLoRA's
(Dettmers et al. 2023, section 3): 4 bits, an 8-bit scale for each 64 weights, a 32-bit one for each
256 of those.
"""

from __future__ import annotations

from typing import NamedTuple

from ..config.load import Config
from ..config.sections import MEMO_BYTES, LoraConfig, ModelShape, StudentModel
from ..config.train import LARGE
from ..rollouts import measures_perplexity

GIB = 1 << 30
PLENTY = 1 << 40  # of memory: nothing is small for its sake
PROMPT = 96  # tokens of the longest prompt where nobody says: a short word problem
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
EIGHT_BIT_STATES = 2.07  # bytes of both moments of a weight
CONTEXT, FRAGMENTATION = 600 << 20, 0.06  # CUDA's own; of what torch allocates, reserved and unused
HEAD_TOKENS, HEAD_WORDS = 4096, 32_768  # the tile of logits that a loss on CUDA takes
FORWARD_BYTES = (
    2 * GIB
)  # of activations that a forward on a CPU may keep, where `train.micro_batch` says nothing
LOGIT_COPIES = 4  # of a forward's logits, in fp32


def rows_of_a_forward(
    batch: int, length: int, layers: int, hidden: int, intermediate: int, words: int = 0
) -> int:
    """Rows of `length` tokens that a forward on a CPU takes by default: a divisor of `batch`,
    within FORWARD_BYTES in fp32.

    `words` is the vocabulary where every token's logits are kept too. It depends on the model, the
    configuration and the data alone, so that a run adds its gradients up in one order everywhere.
    """
    row = length * (layers * (10 * hidden + 4 * intermediate) + LOGIT_COPIES * words) * 4
    return max(
        size
        for size in range(1, batch + 1)
        if batch % size == 0 and (size == 1 or size * row <= FORWARD_BYTES)
    )


class Counts(NamedTuple):
    """Parameters: of the linear layers (which NF4 quantises), of everything else, of one set of
    adapters; `inputs` are the numbers of a token that a layer's adapters multiply.
    """

    linear: int
    other: int
    adapters: int
    inputs: int

    @classmethod
    def of(cls, shape: ModelShape, lora: LoraConfig) -> Counts:
        h, q, kv, f = (
            shape.hidden,
            shape.heads * shape.head_dim,
            shape.kv_heads * shape.head_dim,
            shape.intermediate,
        )
        sizes = {  # a layer's matrices: (inputs, outputs)
            "q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h),
            "gate_proj": (h, f), "up_proj": (h, f), "down_proj": (f, h),
        }  # fmt: skip
        adapted = [sizes[name] for name in lora.targets if name in sizes]
        linear = shape.layers * sum(inner * outer for inner, outer in sizes.values())
        other = shape.vocabulary * h * (1 if shape.tied else 2) + (2 * shape.layers + 1) * h
        adapters = shape.layers * lora.rank * sum(map(sum, adapted))
        return cls(linear, other, adapters, sum(inner for inner, _ in adapted))

    @property
    def whole(self) -> int:
        return self.linear + self.other


class Forecast:
    """What `train` by its method, or `sft` (nothing is searched), takes of a device.

    `parts` are bytes in search and in training, by name.

    Args:
        shape: the student's.
        cuda: whether it is a CUDA device.
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
        self.config, self.shape, self.cuda = config, shape, cuda
        train, engine, context = config.train, config.engine, config.engine.max_context
        counts, width = Counts.of(shape, spec.lora), 4 if spec.dtype == "float32" else 2
        lora, quantised = (train.adapter or spec.adapter) == "lora", spec.quantization != "none"
        prompt = min(prompt, context - 1)
        length = min(prompt + config.search.max_tokens, context)  # tokens of the longest row
        # What is trained: the policy or an adapter, and PPO's critic, a copy with a layer more, or
        # an adapter too.
        policy, trained_width = (
            (counts.adapters, 4) if lora else (counts.whole, width)
        )  # peft's adapters are fp32
        layer = 0 if lora else counts.linear // shape.layers + 2 * shape.hidden
        critic = policy + layer if train.method == "ppo" and not sft else 0
        states = EIGHT_BIT_STATES if train.in_eight_bits(cuda, quantised) else 2 * trained_width
        self.weights: float = counts.whole * width  # as they are loaded
        if quantised:  # on a CPU the rest are views of the file, which stays as it was read
            self.weights = (
                counts.linear * NF4_BYTES + (counts.other if cuda else counts.whole) * width
            )
        packs = not (
            cuda or quantised
        )  # weights of the kernels' own, and matrices in bfloat16 (`frozen.keep_narrow`)
        narrow = (
            packs and lora and width == 4 and counts.whole >= LARGE and train.precision != "float32"
        )
        # Models beside the policy in searches, each with an engine of its own: the frozen student,
        # a value network, a PRM.
        others = (
            (not sft and measures_perplexity(config))
            + (config.search.value is not None)
            + train.process
        )
        engines = others + (engine.backend == "inprocess")
        token = (
            2 * shape.layers * shape.kv_heads * shape.head_dim * width
        )  # bytes of its keys and values
        cached = max(min(engine.cache_tokens, engine.cache(memory) // token), 4 * context)
        wanted = max(config.search.concurrent * config.search.samples, train.validation_size)
        rows = min(engine.rows(token * context, memory), wanted)
        memo = (
            cached * shape.vocabulary * 4
        )  # next-token distributions of every cached token, where they fit
        own = counts.whole * 4 if packs and engine.native == "auto" and shape.plain else 0
        # Slots grow by doubling: between the tokens of all live rows and four times as many.
        decoding = engines * (2 * rows * length * token + memo * (memo <= MEMO_BYTES) + own)
        # A layer keeps of a token what its norms, attention and MLP multiply by; each adapter its
        # own input and the mask of its dropout: fp32, under autocast bf16 and bytes.
        number, mask = (2, 1) if cuda and width == 2 else (4, 4)
        of_adapters = counts.inputs * (number + mask * (spec.lora.dropout > 0)) if lora else 0
        self.layer_bytes = (10.0 * shape.hidden + 4 * shape.intermediate) * width + of_adapters
        tokens = self.rows * length
        kept = shape.layers * self.layer_bytes
        if train.recomputes(cuda, quantised):
            kept = shape.layers * shape.hidden * width + self.layer_bytes
        kept += shape.hidden * 2 * 4  # embedding and last norm
        logits = self.rows * (length - prompt) * shape.vocabulary * width
        if cuda:
            logits = (min(tokens, HEAD_TOKENS) + shape.hidden) * HEAD_WORDS * width
        # Gradients come as activations go, so that the larger of both ends counts.
        gradients = (policy + critic) * trained_width + tokens * self.layer_bytes
        always = {
            "weights": self.weights
            + 2 * narrow * (counts.linear + shape.vocabulary * shape.hidden),
            "models beside it": 0 if lora else others * counts.whole * width,
            "adapters" if lora else "critic": (policy * lora + critic) * trained_width,
            "optimiser": (policy + critic) * states,
            "decoding": decoding,
        }
        # The policy's cache is empty while it is trained, and vLLM sleeps (`Engine.sleep`).
        self.parts: dict[str, tuple[float, float]] = {
            name: (size, size) for name, size in always.items()
        } | {
            "prefix cache": (engines * cached * token, others * cached * token),
            "vLLM": (engine.vllm.gpu_memory * memory * (engine.backend == "vllm" and cuda), 0),
            "activations and logits, or gradients": (
                0,
                max(tokens * kept * (1 + (critic > 0)) + logits, gradients),
            ),
        }
        self.parts = {name: sizes for name, sizes in self.parts.items() if any(sizes)}
        if cuda:
            spare = CONTEXT + FRAGMENTATION * self.peak
            self.parts["CUDA's context, fragmentation"] = (spare, spare)

    @property
    def phases(self) -> dict[str, float]:
        """Bytes at the peak of a search, and of an update."""
        search, train = map(sum, zip(*self.parts.values(), strict=True))
        return {"search": search, "train": train}

    @property
    def peak(self) -> float:
        return max(self.phases.values())

    @property
    def rows(self) -> int:
        """Rows of one forward in an update."""
        train, shape = self.config.train, self.shape
        if train.micro_batch is not None or self.cuda:
            return min(train.micro_batch or PLENTY, train.optimizer.batch_size)
        length = PROMPT + self.config.search.max_tokens
        return rows_of_a_forward(
            train.optimizer.batch_size, length, shape.layers, shape.hidden, shape.intermediate
        )
