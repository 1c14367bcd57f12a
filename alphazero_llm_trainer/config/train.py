"""The `train` section of the configuration: rounds, trainers, value network and process reward model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from .sections import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Section, Share, Temperature, on_or_off

# Parameters from which on products dominate a forward: then bfloat16 and more threads than one pay, and learning rates are
# smaller. Below it threads wait for each other longer than they compute, the more so on a busy machine.
LARGE = 50_000_000


class RateConfig(Section):
    """A learning rate that depends on the model where the configuration gives none."""

    own_rate: ClassVar[float]
    large_rate: ClassVar[float]
    learning_rate: PositiveFloat | None = None

    def rate(self, parameters: int, adapter: str) -> float:
        """The learning rate for a model of so many parameters, of which all ("full") or an adapter's ("lora") are trained."""
        if self.learning_rate is not None:
            return self.learning_rate
        return self.large_rate if adapter == "full" and parameters >= LARGE else self.own_rate


class RoundsConfig(RateConfig):
    """What every method that trains in rounds has."""

    own_rate = 5e-4
    large_rate = 1e-5
    batch_size: Positive
    warmup_rounds: NonNegative = 4
    max_grad_norm: PositiveFloat = 1.0
    weight_decay: NonNegativeFloat = 0.0


class GrpoConfig(RoundsConfig):
    batch_size: Positive = 20
    epochs: Positive = 4
    clip_low: Share = 0.2
    clip_high: Share = 0.28
    importance: bool = True
    kl_coefficient: NonNegativeFloat = 0.0
    credit: Literal["group", "step", "process", "visits"] = "group"
    prm: str | None = None
    process_weight: NonNegativeFloat = 0.5
    negative_weight: Share = 0.3
    teacher_rows: bool = False
    pack: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)] = "auto"

    @property
    def weighted_sft(self) -> bool:
        """Whether this is no GRPO but supervised training on above-average rows, weighted by their advantages: no ratio."""
        return not self.importance and self.negative_weight == 0


class PpoConfig(RoundsConfig):
    own_rate = 3e-4
    batch_size: Positive = 80
    epochs: Positive = 4
    samples: Positive = 8
    rows_per_round: Positive = 256
    gamma: Share = 1.0
    gae_lambda: Share = 1.0
    clip: Share = 0.2
    value_clip: PositiveFloat = 0.5
    value_coefficient: NonNegativeFloat = 0.5
    extra_layers: NonNegative | None = None
    kl_coefficient: NonNegativeFloat = 0.0
    critic_rounds: NonNegative = 2


class ExpertConfig(RoundsConfig):
    """Supervised training on the student's own responses: `train.legacy`, and `train.rft` below."""

    large_rate = 5e-5
    batch_size: Positive = 16
    updates_per_round: Positive = 14
    epochs: Positive = 4
    warmup_rounds: NonNegative = 1


class RftConfig(ExpertConfig):
    responses: Positive = 4


class SftConfig(Section):
    learning_rate: PositiveFloat | None = None
    batch_size: Positive = 16
    steps: Positive | None = None
    question_weight: Share | None = None
    warmup_steps: NonNegative = 50
    weight_decay: NonNegativeFloat = 0.01
    max_grad_norm: PositiveFloat = 1.0
    validation_size: Positive = 500
    evaluate_every: Positive = 300


class CollectConfig(Section):
    """Fresh questions that are searched for a judge where no data is given."""

    questions: Annotated[int, Field(ge=10)] = 2000
    iterations: Positive = 6
    samples: Positive = 8
    temperature: Annotated[Temperature, Field(gt=0)] = 1.0


class JudgeConfig(RateConfig):
    """What a value function and a process reward model are trained by alike; `section` is below `train`."""

    section: ClassVar[Literal["value", "prm"]]
    large_rate = 2e-5
    collect: CollectConfig = CollectConfig()
    validation_share: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    test_share: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    least_outcomes: Positive
    extra_layers: NonNegative | None = None
    rank_weight: NonNegativeFloat = 1.0
    batch_size: Positive = 32
    micro_batch: Positive | None = None  # what is more than batch_size counts as that
    epochs: Positive
    warmup_steps: NonNegative
    weight_decay: NonNegativeFloat = 0.01
    max_grad_norm: PositiveFloat = 1.0
    evaluate_every: Positive
    patience: Positive

    @field_validator("micro_batch")
    @classmethod
    def divides(cls, value: int | None, info: ValidationInfo) -> int | None:
        """An update is a whole number of forwards."""
        batch = info.data.get("batch_size")
        if value is not None and batch is not None and batch % min(value, batch):
            raise PydanticCustomError("divisor", f"give a divisor of batch_size, which is {batch}")
        return value


class ValueConfig(JudgeConfig):
    section = "value"
    own_rate = 1e-3
    kind: Literal["head", "network"] = "network"
    collect: CollectConfig = CollectConfig(temperature=1.4)
    least_outcomes: Positive = 2
    every_token: bool = True
    weight_power: Share = 1.0
    epochs: Positive = 8
    warmup_steps: NonNegative = 50
    evaluate_every: Positive = 100
    patience: Positive = 4
    calibrate: bool = True


class PrmConfig(JudgeConfig):
    section = "prm"
    own_rate = 3e-4
    kind: Literal["implicit", "classifier", "bradley-terry", "all"] = "implicit"
    base: str | None = None
    policy: bool = True
    trainer: Literal["packed", "trl"] = "packed"
    format: Literal["math-shepherd", "rlhflow", "qwen-prm"] | None = None
    spoiled: NonNegative | None = None
    margin: Annotated[float, Field(gt=0, le=1)] = 0.5
    least_outcomes: Positive = 3
    pairs_per_question: Positive = 32
    labels: Literal["soft", "hard"] = "hard"
    logprob: bool = True
    label_weight: NonNegativeFloat = 1.0
    sft_weight: NonNegativeFloat = 0.5
    epochs: Positive = 2
    warmup_steps: NonNegative = 30
    evaluate_every: Positive = 50
    patience: Positive = 8


class TrainConfig(Section):
    method: Literal["grpo", "rft", "ppo", "legacy"] = "grpo"
    student: str | None = None
    num_examples: Positive = 5760
    preflight: NonNegative = 8
    first_question: NonNegative = 0
    questions_per_round: Positive = 96
    checkpoint_dir: str = "checkpoints"
    save_every: Positive = 960
    log_interval: Positive = 1
    track: Literal["none", "mlflow", "wandb", "trackio", "tensorboard"] = "none"
    eval_size: NonNegative = 1000
    validation_size: NonNegative = 300
    keep_best: bool = True
    groups: Literal["tree", "chain", "verified"] = "tree"
    iterations: Positive = 3
    samples: Positive = 4
    requeue_iterations: NonNegative = 3
    requeue_limit: NonNegative = 1
    extend: Literal["flat", "mixed", "none"] = "flat"
    chain_samples: Annotated[int, Field(ge=2)] = 8
    reward: Literal["hre", "combined"] | None = None
    rows_per_round: Positive = 32
    demonstrations: NonNegative = 1350
    demonstration_share: Annotated[float, Field(ge=0, lt=1)] | None = None
    demonstration_weight: NonNegativeFloat = 0.5
    adapter: Literal["full", "lora"] | None = None
    micro_batch: Positive | None = None
    gradient_checkpointing: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)] = "auto"
    optimizer: Literal["auto", "adamw", "adamw_8bit"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    merge_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    push_to_hub: str | None = None
    grpo: GrpoConfig = GrpoConfig()
    ppo: PpoConfig = PpoConfig()
    rft: RftConfig = RftConfig()
    legacy: ExpertConfig = ExpertConfig()
    sft: SftConfig = SftConfig()
    value: ValueConfig = ValueConfig()
    prm: PrmConfig = PrmConfig()

    @property
    def settings(self) -> GrpoConfig | PpoConfig | ExpertConfig:
        """The section of the method."""
        return getattr(self, self.method)

    @property
    def supervised(self) -> bool:
        """Whether the method learns from responses as they are, whoever sampled them and when."""
        return isinstance(self.settings, ExpertConfig)

    def recomputes(self, cuda: bool, quantised: bool) -> bool:
        """Whether a backward pass computes the activations again: `auto` does on CUDA and over 4-bit weights."""
        return self.gradient_checkpointing == "on" or (self.gradient_checkpointing == "auto" and (cuda or quantised))

    def in_eight_bits(self, cuda: bool, quantised: bool) -> bool:
        """Whether the optimiser's states have 8 bits: `auto` takes them over 4-bit weights on CUDA."""
        return self.optimizer == "adamw_8bit" or (self.optimizer == "auto" and cuda and quantised)
