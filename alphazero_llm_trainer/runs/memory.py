"""A forecast of the memory that a training takes, from the model's shape and the configuration:
plain arithmetic, no torch.

A search and an update follow each other, so that the larger of both counts. NF4's 4.127 bits a
weight are QLoRA's (Dettmers et al. 2023, section 3): 4 bits, an 8-bit scale for each 64 weights, a
32-bit one for each 256 of those.
"""

from __future__ import annotations

from typing import NamedTuple

from ..config.load import Config
from ..config.sections import MEMO_BYTES, LoraConfig, ModelShape, StudentModel
from ..learning.methods.base import Method
from ..learning.size import PROMPT, rows_of_a_forward
from ..rollouts import measures_perplexity

GIB = 1 << 30
PLENTY = 1 << 40  # of memory: nothing is small for its sake
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
EIGHT_BIT_STATES = 2.07  # bytes of both moments of a weight
FRAGMENTS = 0.06  # of what torch allocates on CUDA: memory that it reserves beside it


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
        h, f = shape.hidden, shape.intermediate
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        sizes = {  # a layer's matrices: (inputs, outputs)
            "q_proj": (h, q),
            "k_proj": (h, kv),
            "v_proj": (h, kv),
            "o_proj": (q, h),
            "gate_proj": (h, f),
            "up_proj": (h, f),
            "down_proj": (f, h),
        }
        adapted = [sizes[name] for name in lora.targets if name in sizes]
        linear = shape.layers * sum(inner * outer for inner, outer in sizes.values())
        other = shape.vocabulary * h * (1 if shape.tied else 2) + (2 * shape.layers + 1) * h
        adapters = shape.layers * lora.rank * sum(map(sum, adapted))
        return cls(linear, other, adapters, sum(inner for inner, _ in adapted))

    @property
    def whole(self) -> int:
        return self.linear + self.other


class Forecast(NamedTuple):
    """Bytes of a device: always there (the `weights`, and what is `trained` with its optimiser), in
    a `search` (caches), and in an `update` (activations, or the gradients).
    """

    weights: float
    trained: float
    search: float
    update: float

    @property
    def peak(self) -> float:
        return self.weights + self.trained + max(self.search, self.update)


def forecast(
    config: Config,
    method: Method,
    spec: StudentModel,
    shape: ModelShape,
    cuda: bool,
    prompt: int = PROMPT,
    memory: int = PLENTY,
    wide: bool = False,
) -> Forecast:
    """What `train` takes at most.

    Args:
        shape: the student's.
        cuda: whether it is a CUDA device.
        prompt: tokens of the longest prompt.
        memory: the device's bytes, which the engine's default sizes depend on.
        wide: whether half-precision weights are held in float32 (`folders.widens`).
    """
    train, engine, context = config.train, config.engine, config.engine.context
    counts, width = Counts.of(shape, spec.lora), 4 if wide or spec.dtype == "float32" else 2
    lora, quantised = (train.adapter or spec.adapter) == "lora", spec.quantization != "none"
    length = min(prompt + config.search.max_tokens, context)  # tokens of the longest row
    weights: float = counts.whole * width
    if quantised:  # on a CPU narrow ones are views of the file, which stays as it was read
        rest = counts.other if cuda or wide else counts.whole
        weights = counts.linear * NF4_BYTES + rest * width
    # PPO's critic is as large as what is trained. peft's adapters are fp32.
    policy, trained_width = (counts.adapters, 4) if lora else (counts.whole, width)
    trained = policy * (1 + method.critics)
    states = EIGHT_BIT_STATES if train.in_eight_bits(cuda, quantised) else 2 * trained_width
    # Models beside the policy: the frozen student, a value network, a PRM. Under LoRA they share
    # its weights.
    others = measures_perplexity(config, method) + (config.search.value is not None) + train.process
    beside = (trained - (0 if lora else policy)) * trained_width
    beside += 0 if lora else others * counts.whole * width
    # -- a search
    token = 2 * shape.layers * shape.kv_heads * shape.head_dim * width  # its keys and values
    cached = max(min(engine.cache_tokens, engine.cache(memory) // token), 4 * context)
    wanted = max(config.search.concurrent * config.search.samples, train.validation_size)
    rows = min(engine.rows(token * context, memory), wanted)
    memo = cached * shape.vocabulary * 4  # next-token distributions, where they fit
    kernels = not (cuda or quantised) and engine.native == "auto" and shape.plain
    # A layer's keys and values of all live rows, as read and as its attention lays them out.
    cache = token * (cached + 2 * rows * length / shape.layers) + memo * (memo <= MEMO_BYTES)
    search: float = (others + (engine.backend == "inprocess")) * (
        cache + kernels * counts.whole * 4
    )
    search += engine.vllm.gpu_memory * memory * (engine.backend == "vllm" and cuda)
    # -- an update
    batch = train.optimizer.batch_size
    forward = train.micro_batch or batch
    if train.micro_batch is None and not cuda:
        sizes = shape.layers, shape.hidden, shape.intermediate
        forward = rows_of_a_forward(batch, PROMPT + config.search.max_tokens, *sizes)
    layer = bytes_of_a_layer(shape, counts, spec.lora, width, lora, cuda)
    kept = shape.layers * layer
    if train.recomputes(cuda, quantised):
        kept = shape.layers * shape.hidden * width + layer
    tokens = forward * length
    logits = forward * min(config.search.max_tokens, length) * shape.vocabulary * width
    # Gradients come as activations go, so that the larger of both ends counts.
    gradients = trained * trained_width + tokens * layer
    update = max(tokens * kept * (1 + method.critics) + logits, gradients)
    made = Forecast(weights, beside + trained * states, search, update)
    return Forecast(*(size * (1 + FRAGMENTS * cuda) for size in made))


def bytes_of_a_layer(
    shape: ModelShape, counts: Counts, adapters: LoraConfig, width: int, lora: bool, cuda: bool
) -> float:
    """Bytes that a layer keeps of a token for the backward pass: what norms, attention and MLP
    multiply by; of each adapter its input and its dropout's mask, fp32, or bf16 and bytes under
    autocast.
    """
    number, mask = (2, 1) if cuda and width == 2 else (4, 4)
    of_adapters = counts.inputs * (number + mask * (adapters.dropout > 0)) if lora else 0
    return (10.0 * shape.hidden + 4 * shape.intermediate) * width + of_adapters
