"""How much memory a training run takes, from the model's shape and the configuration: plain arithmetic, no torch.

Bytes are those that torch allocates (`torch.cuda.max_memory_allocated`); the CUDA context and the allocator's
fragmentation are parts of their own. `benchmarks/memory.py` holds the formulas against real peaks. NF4's 4.127 bits a
weight are QLoRA's (Dettmers et al. 2023, section 3): 4 bits, an 8-bit scale for each 64, a 32-bit one for each 256 of those.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config.load import Config
from ..config.sections import FIRST_ROWS, FIRST_TOKENS, MEMO_BYTES, PREFILL_TOKENS, LoraConfig, ModelShape, StudentModel
from ..config.train import JudgeConfig, ValueConfig
from .disk import DiskPlan, disk_plan

GIB = 1 << 30
PLENTY = 1 << 40  # of memory: nothing is small for its sake
CONTEXT = 600 << 20  # CUDA's own: kernels, cuBLAS workspaces
FRAGMENTATION = 0.06  # of what torch allocates, reserved and unused
PHASES = ("load", "search", "train")
AFTER_LOAD = ("search", "train")
NODE_BYTES = 350  # the prefix tree's links of a node: C arrays, and a dictionary with one child
HEAD_TOKENS, HEAD_WORDS = 4096, 32_768  # TRL's tile of logits, on CUDA
HEAD_TILE, HEAD_COPIES = 2**19, 3  # `train.head`: logits in fp32 at a time, and tensors of them
FORWARD_BYTES = 2 * GIB  # of activations that a forward on a CPU may keep, where `train.micro_batch` says nothing
LOGIT_COPIES = 4  # of a judge's logits, in fp32
RANK_COPIES = 5  # [T, T] matrices of a question in the value's ranking loss, in fp32
PROMPT = 96  # tokens of the longest prompt where nobody says: a short word problem


@dataclass(frozen=True, slots=True)
class Part:
    """A share of the memory: what it is, its formula in words, bytes, and the phases in which it is there."""

    name: str
    formula: str
    size: float
    phases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A forecast for one device. `available` is what it has free in bytes, `weights` the model's alone."""

    parts: tuple[Part, ...]
    device: str
    available: int
    weights: float

    def at(self, phase: str) -> float:
        """Bytes at the phase's peak."""
        return sum(part.size for part in self.parts if phase in part.phases)

    @property
    def peak(self) -> float:
        return max(map(self.at, PHASES))

    @property
    def fits(self) -> bool:
        return self.peak <= self.available

    def allocated(self, phase: str) -> float:
        """What torch itself allocates of it: no context, no fragmentation, none of Python's own objects."""
        others = ("CUDA context", "fragmentation", "prefix tree")
        return sum(part.size for part in self.parts if phase in part.phases and part.name not in others)


@dataclass(frozen=True, slots=True)
class Counts:
    """Parameters: of the linear layers (which NF4 quantises), of everything else, of one set of adapters."""

    linear: int
    matrices: int
    other: int
    adapters: int

    @classmethod
    def of(cls, shape: ModelShape, lora: LoraConfig) -> Counts:
        sizes = matrices(shape)
        linear = shape.layers * sum(inner * outer for inner, outer in sizes.values())
        other = shape.vocabulary * shape.hidden * (1 if shape.tied else 2) + (2 * shape.layers + 1) * shape.hidden
        adapted = [sizes[name] for name in lora.targets if name in sizes]
        adapters = shape.layers * lora.rank * sum(map(sum, adapted))
        return cls(linear, shape.layers * len(sizes), other, adapters)

    @property
    def whole(self) -> int:
        return self.linear + self.other


def matrices(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """A layer's matrices: (inputs, outputs)."""
    h, q, kv, f = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.intermediate
    attention = {"q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h)}
    return attention | {"gate_proj": (h, f), "up_proj": (h, f), "down_proj": (f, h)}


def nf4_bytes(counts: Counts) -> float:
    """4 bits a weight, the two levels of scales, and each matrix's two code books."""
    return counts.linear * (0.5 + 1 / 64 + 4 / (64 * 256)) + counts.matrices * (16 * 4 + 256 * 4 + 4)


def rows_of_a_forward(
    batch: int, length: int, layers: int, hidden: int, intermediate: int, words: int = 0, squares: int = 0
) -> int:
    """Rows of `length` tokens that a forward on a CPU takes by default: a divisor of `batch`, within FORWARD_BYTES in fp32.

    `words` is the vocabulary where every token's logits are kept too, `squares` the bytes of each pair of tokens. It depends on
    the model, the configuration and the data alone, so that a run adds its gradients up in one order everywhere.
    """
    row = length * (layers * (10 * hidden + 4 * intermediate) + LOGIT_COPIES * words) * 4 + squares * length**2
    return max(size for size in range(1, batch + 1) if batch % size == 0 and (size == 1 or size * row <= FORWARD_BYTES))


def square_bytes(settings: JudgeConfig) -> int:
    """Bytes that a forward keeps of each pair of a question's tokens: the mask, and the value's ranking loss."""
    ranked = isinstance(settings, ValueConfig) and settings.kind == "network" and settings.rank_weight
    return 4 * (1 + (RANK_COPIES if ranked else 0))


def doubled(start: int, wanted: int) -> int:
    """`start`, doubled until it holds `wanted`: how the engine's slots grow."""
    return start if wanted <= start else start * 2 ** math.ceil(math.log2(wanted / start))


class Forecast:
    """The parts of a run. `width` is bytes of a weight and of an activation, `trained` of a trained parameter, `prompt` and
    `length` tokens of the longest prompt and row; `memory` is what the device has, in bytes (None: plenty). Under FSDP so many
    `shards` share what is trained, a copy of the model that searches (`train.fsdp`)."""

    def __init__(
        self,
        config: Config,
        spec: StudentModel,
        shape: ModelShape,
        device: str,
        prompt: int = PROMPT,
        memory: int | None = None,
        shards: int = 1,
    ) -> None:
        self.shards = shards
        self.memory = PLENTY if memory is None else memory
        self.config, self.spec, self.shape, self.cuda = config, spec, shape, device != "cpu"
        self.lora = (config.train.adapter or spec.adapter) == "lora"
        self.quantised = spec.quantization != "none"
        self.counts = Counts.of(shape, spec.lora)
        self.width = 2 if spec.dtype == "bfloat16" else 4
        # peft's adapters are fp32; what flows between the layers has the precision of the base.
        # accelerate shards fp32 weights where the products are in bf16.
        wide = self.lora or (shards > 1 and config.train.precision != "float32")
        self.trained = 4 if wide else self.width
        self.context = config.engine.max_context
        self.prompt = max(min(prompt, self.context - 1), 1)
        self.length = min(self.prompt + config.search.max_tokens, self.context)

    # -- weights -----------------------------------------------------------------------------------------------------

    def weights(self) -> list[Part]:
        counts = self.counts
        if not self.quantised:
            formula = f"{counts.whole / 1e6:,.0f} M parameters x {self.width} B"
            return [Part("weights", formula, counts.whole * self.width, PHASES)]
        parts = [Part("weights, NF4", f"{counts.linear / 1e6:,.0f} M x 4.127 bits", nf4_bytes(counts), PHASES)]
        if self.cuda:
            formula = f"{counts.other / 1e6:,.0f} M of embeddings and norms x {self.width} B"
            return [*parts, Part("weights, rest", formula, counts.other * self.width, PHASES)]
        # On the CPU the rest are views of the file, which stays as it was read.
        formula = f"the file as read: {counts.whole / 1e6:,.0f} M x {self.width} B"
        return [*parts, Part("weights, rest", formula, counts.whole * self.width, PHASES)]

    @property
    def trained_parameters(self) -> tuple[int, int]:
        """Trained parameters of the policy, and of PPO's critic beside it."""
        train, counts = self.config.train, self.counts
        count = counts.adapters if self.lora else counts.whole
        if train.method != "ppo":
            return count, 0
        extra = train.ppo.extra_layers
        layer = counts.linear // self.shape.layers + 2 * self.shape.hidden
        # A critic that is no adapter is a copy with a layer more.
        return count, count + layer * ((0 if self.lora else 1) if extra is None else extra)

    def training(self) -> list[Part]:
        """Adapters, optimiser states and gradients."""
        policy, critic = self.trained_parameters
        both = policy + critic
        what = f"{both / 1e6:,.1f} M trained"
        parts = []
        if self.lora:
            parts.append(Part("adapters", f"{what} x {self.trained} B", both * self.trained, AFTER_LOAD))
        elif critic:
            parts.append(Part("critic", f"{critic / 1e6:,.1f} M x {self.width} B", critic * self.width, AFTER_LOAD))
        states = 2.07 if self.config.train.in_eight_bits(self.cuda, self.quantised) else 2 * self.trained
        each = "" if self.shards == 1 else f" / {self.shards} processes"
        formula = f"two moments: {what} x {states:.3g} B{each}"
        parts.append(Part("optimiser", formula, both * states / self.shards, AFTER_LOAD))
        if self.shards > 1:
            copy = both * self.trained / self.shards
            parts.append(Part("sharded copy", f"what is trained: {what} x {self.trained} B{each}", copy, AFTER_LOAD))
            layer = 2 * self.counts.linear / self.shape.layers * self.trained
            parts.append(Part("gathered layer", "a layer's weights and gradients, whole", layer, ("train",)))
        return parts

    def disk(self, checkpoints: int) -> DiskPlan:
        """What the run writes with so many checkpoints; `Run.disk` asks the loaded model instead."""
        train, (policy, _) = self.config.train, self.trained_parameters
        width = {"auto": self.width, "float32": 4, "bfloat16": 2}[train.merge_dtype] if self.lora else self.width
        return disk_plan(
            train,
            checkpoints,
            trained=policy * self.trained,
            student=self.counts.whole * width,
            layers=self.shape.layers,
            lora=self.lora,
        )

    # -- engines -----------------------------------------------------------------------------------------------------

    def engine_count(self) -> tuple[int, str]:
        """Engines with caches of their own, and what for."""
        config, uses = self.config, ["policy"]
        if config.rewards.use_student_model and config.rewards.pre_weight > 0:
            uses.append("PRE's frozen student")
        if config.search.value is not None:
            uses.append("value network")
        if config.train.method == "grpo" and config.train.grpo.credit == "process":
            uses.append("PRM")
        return len(uses), ", ".join(uses)

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token."""
        return 2 * self.shape.layers * self.shape.kv_heads * self.shape.head_dim * self.width

    @property
    def capacity(self) -> int:
        """Tokens of the prefix cache."""
        engine = self.config.engine
        return max(min(engine.cache_tokens, engine.cache(self.memory) // self.token_bytes), 4 * self.context)

    @property
    def batch(self) -> int:
        """Rows that the engine may decode together."""
        return self.config.engine.rows(self.token_bytes * self.context, self.memory)

    @property
    def rows(self) -> int:
        """Rows that the engine has live at once, at most."""
        search, train = self.config.search, self.config.train
        if train.method == "ppo":
            samples = train.ppo.samples
        else:
            samples = train.chain_samples if train.groups == "chain" else max(train.samples, search.samples)
        wanted = max(search.concurrent * samples, train.eval_size, train.validation_size)
        return min(self.batch, wanted)

    def slots(self) -> tuple[int, int]:
        """Rows and tokens a row that the slots have grown to."""
        limit = self.batch
        return doubled(min(FIRST_ROWS, limit), self.rows), doubled(min(FIRST_TOKENS, self.context), self.length)

    @property
    def first_slots(self) -> int:
        """Bytes of the slots that the engine begins with."""
        return min(FIRST_ROWS, self.batch) * min(FIRST_TOKENS, self.context) * self.token_bytes

    def engines(self, total: int) -> list[Part]:
        shape = self.shape
        count, uses = self.engine_count()
        outside: list[Part] = []
        if self.config.engine.backend != "inprocess":
            count, uses = count - 1, uses.partition(", ")[2]
            if self.config.engine.backend == "vllm" and self.cuda:
                served = self.config.engine.vllm
                phases = PHASES if served.sleep == "off" else ("load", "search")
                formula = f"engine.vllm.gpu_memory {served.gpu_memory:g} of the device"
                outside.append(Part("vLLM", formula, served.gpu_memory * total, phases))
            if not count:
                return outside
        rows, room = self.slots()
        capacity = self.capacity
        cache = capacity * self.token_bytes
        parts = outside
        # The policy's engine rests while it is trained (`Engine.rest`), and its cache begins with the first search.
        own = int(self.config.engine.backend == "inprocess")
        for number, what, when in ((own, "policy", ("search",)), (count - own, uses.removeprefix("policy, "), PHASES)):
            if number:
                formula = f"{number} x {capacity:,} tokens x {self.token_bytes:,} B ({what})"
                parts.append(Part("prefix cache", formula, number * cache, tuple(when)))
        if capacity * shape.vocabulary * 4 <= MEMO_BYTES:
            memo = capacity * shape.vocabulary * 4
            formula = f"{count} x {capacity:,} x {shape.vocabulary:,} words x 4 B"
            parts.append(Part("next-token table", formula, count * memo, PHASES))
        slots = rows * room * self.token_bytes
        formula = f"{count} x {rows} rows x {room} tokens x {self.token_bytes:,} B"
        parts.append(Part("decoding slots", formula, count * slots, AFTER_LOAD))
        parts.append(Part("decoding slots", f"{count} x the first ones", count * self.first_slots, ("load",)))
        if not self.lora and not self.quantised and shape.plain:
            fused = self.fused * self.width
            formula = f"{count} x joined q, k, v, gate and up matrices"
            parts.append(Part("engine's copy", formula, count * fused, PHASES))
        if not self.cuda:
            parts.append(
                Part(
                    "prefix tree",
                    f"{count} x {capacity:,} nodes x {NODE_BYTES} B",
                    count * capacity * NODE_BYTES,
                    PHASES,
                )
            )
        if count > 1 and not self.lora:
            copies = (count - 1) * self.counts.whole * self.width
            parts.append(
                Part("copies of the student", f"{uses.partition(', ')[2]}: weights of their own", copies, PHASES)
            )
        return parts

    @property
    def fused(self) -> int:
        """Weights of q, k, v, gate and up."""
        sizes = matrices(self.shape)
        names = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
        return self.shape.layers * sum(math.prod(sizes[name]) for name in names)

    def searching(self) -> Part:
        """The largest of what a search holds for a moment: a prefill, a decode step, growing slots, new weights."""
        shape, w = self.shape, self.width
        rows, room = self.slots()
        h, f = shape.hidden, shape.intermediate
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        logits = shape.vocabulary * (w + 8)
        tokens = min(PREFILL_TOKENS, self.rows * self.prompt)
        # A layer's own tensors; the new keys and values of all layers, stacked, and picked.
        prefill = tokens * ((3 * h + q + 2 * kv + 3 * f) * w + 3 * self.token_bytes)
        prefill += min(self.rows, math.ceil(tokens / self.prompt)) * logits
        repeated = 2 * q if q != kv else 0
        decode = self.rows * (self.length * repeated * w + logits + 3 * self.token_bytes)
        growth = rows * room * self.token_bytes / 2
        again = self.first_slots
        again += self.fused * w if not self.lora and not self.quantised and shape.plain else 0
        moments = {"a prefill": prefill, "a decode step": decode, "growing slots": growth, "new weights": again}
        name = max(moments, key=lambda key: moments[key])
        return Part("search workspace", f"{name}: {self.rows} rows, {tokens:,} tokens", moments[name], ("search",))

    # -- a training step ---------------------------------------------------------------------------------------------

    @property
    def micro_batch(self) -> int:
        """Rows of one forward."""
        train, size = self.config.train, self.config.train.settings.batch_size
        if train.micro_batch is not None:
            return min(train.micro_batch, size)
        shape = self.shape
        if self.cuda:
            return size
        return rows_of_a_forward(
            size, PROMPT + self.config.search.max_tokens, shape.layers, shape.hidden, shape.intermediate
        )

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
        kept = 2 if self.cuda and s == 2 else self.trained
        mask = (1 if self.cuda else self.trained) if lora.dropout else 0
        dropped = inputs * (kept + mask) + len(lora.targets) * lora.rank * kept
        return 2 * 4 * h + (attention + 3 * f) * s + dropped

    def step(self) -> list[Part]:
        """Activations, the output layer's workspace and gradients at the step's peak."""
        config, shape = self.config, self.shape
        rows, length = self.micro_batch, self.length
        tokens = rows * length
        policies = 2 if config.train.method == "ppo" else 1
        one = tokens * self.layer_bytes()
        if config.train.recomputes(self.cuda, self.quantised):
            kept = shape.layers * tokens * shape.hidden * self.width + one
            what = f"{rows} rows x {length} tokens: {shape.layers} layers' inputs, one layer whole"
        else:
            kept = shape.layers * one
            what = f"{rows} rows x {length} tokens x {shape.layers} layers x {self.layer_bytes():,.0f} B"
        kept += tokens * shape.hidden * 2 * 4  # embedding and last norm
        head, how = self.head(rows, length)
        gradients = sum(self.trained_parameters) * self.trained / self.shards
        embedded = 0 if self.lora else shape.vocabulary * shape.hidden * 4
        # Gradients come as activations go: the larger of both ends counts.
        start, end = policies * kept + head + embedded, gradients + one + embedded
        if start >= end:
            parts = [
                Part("activations", what, policies * kept, ("train",)),
                Part("output layer", how, head, ("train",)),
            ]
            if embedded:
                parts.append(Part("gradients", "the output layer's come first", embedded, ("train",)))
            return parts
        formula = f"{sum(self.trained_parameters) / 1e6:,.1f} M x {self.trained} B, one layer whole"
        return [Part("gradients", formula, end, ("train",))]

    def head(self, rows: int, length: int) -> tuple[float, str]:
        """Logits of a tile of tokens and words, and what is computed of them."""
        shape, act = self.shape, self.width
        tokens = rows * (length - self.prompt)
        size: float = 2 * tokens * shape.hidden * 4
        if self.cuda:
            tile = min(tokens, HEAD_TOKENS)
            size += tile * HEAD_WORDS * act + (HEAD_WORDS * shape.hidden * 2 if act == 2 else 0)
            return size, f"logits of {tile:,} tokens x {HEAD_WORDS:,} words x {act} B"
        size += tokens * shape.vocabulary * act + HEAD_COPIES * min(tokens * shape.vocabulary, HEAD_TILE) * 4
        return size, f"logits of {tokens:,} tokens x {shape.vocabulary:,} words x {act} B"

    # -- all of it ---------------------------------------------------------------------------------------------------

    def plan(self, available: int, total: int | None = None) -> MemoryPlan:
        parts = [*self.weights(), *self.training(), *self.engines(available if total is None else total)]
        if any(part.name == "decoding slots" for part in parts):
            parts.append(self.searching())
        parts += self.step()
        weights = sum(part.size for part in parts if part.name.startswith("weights") and "load" in part.phases)
        if self.cuda:
            share = max(sum(p.size for p in parts if phase in p.phases) for phase in PHASES)
            parts += [
                Part("CUDA context", "kernels and cuBLAS workspaces", CONTEXT, PHASES),
                Part("fragmentation", f"{FRAGMENTATION:.0%} of the above", FRAGMENTATION * share, PHASES),
            ]
        return MemoryPlan(tuple(parts), "cuda" if self.cuda else "cpu", available, weights)
