"""The `train` section of the configuration: rounds, trainers and critics."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from .sections import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Section, Share, Temperature, on_or_off

# Parameters from which on products dominate a forward: then bfloat16 and more threads than one pay, and learning rates are
# smaller. Below it threads wait for each other longer than they compute, the more so on a busy machine.
LARGE = 50_000_000


class RateConfig(Section):
    """A learning rate that depends on the model where the configuration gives none."""

    own_rate: ClassVar[float]
    large_rate: ClassVar[float]
    learning_rate: PositiveFloat | None

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
    warmup_rounds: NonNegative
    max_grad_norm: PositiveFloat
    weight_decay: NonNegativeFloat


class GrpoConfig(RoundsConfig):
    place = "train.grpo"
    epochs: Positive
    clip_low: Share
    clip_high: Share
    importance: bool
    kl_coefficient: NonNegativeFloat
    credit: Literal["group", "step", "process", "visits"]
    prm: str | None
    process_weight: NonNegativeFloat
    negative_weight: Share
    teacher_rows: bool
    pack: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)]

    @property
    def weighted_sft(self) -> bool:
        """Whether this is no GRPO but supervised training on above-average rows, weighted by their advantages: no ratio."""
        return not self.importance and self.negative_weight == 0


class PpoConfig(RoundsConfig):
    place = "train.ppo"
    own_rate = 3e-4
    epochs: Positive
    samples: Positive
    rows_per_round: Positive
    gamma: Share
    gae_lambda: Share
    clip: Share
    value_clip: PositiveFloat
    value_coefficient: NonNegativeFloat
    extra_layers: NonNegative | None
    kl_coefficient: NonNegativeFloat
    critic_rounds: NonNegative


class ExpertConfig(RoundsConfig):
    """Supervised training on the student's own responses: `train.legacy`, and `train.rft` below."""

    place = "train.legacy"
    large_rate = 5e-5
    updates_per_round: Positive
    epochs: Positive


class RftConfig(ExpertConfig):
    place = "train.rft"
    responses: Positive


class SftConfig(Section):
    place = "train.sft"
    learning_rate: PositiveFloat | None
    batch_size: Positive
    steps: Positive | None
    question_weight: Share | None
    warmup_steps: NonNegative
    weight_decay: NonNegativeFloat
    max_grad_norm: PositiveFloat
    validation_size: Positive
    evaluate_every: Positive


class CriticConfig(RateConfig):
    """How a value network and a process reward model are trained, and the questions that are searched for them."""

    place = "train.critic"
    own_rate = 5e-4
    large_rate = 2e-5
    questions: Annotated[int, Field(ge=10)]
    iterations: Positive
    samples: Positive
    temperature: Annotated[Temperature, Field(gt=0)]
    margin: Annotated[float, Field(gt=0, le=1)]
    least_outcomes: Positive
    pairs: Positive
    spoiled: NonNegative
    batch_size: Positive
    epochs: Positive
    evaluate_every: Positive
    patience: Positive
    format: Literal["math-shepherd", "rlhflow", "qwen-prm"] | None


class TrainConfig(Section):
    place = "train"
    method: Literal["grpo", "rft", "ppo", "legacy"]
    student: str | None
    num_examples: Positive
    preflight: NonNegative
    first_question: NonNegative
    questions_per_round: Positive
    checkpoint_dir: str
    save_every: Positive
    log_interval: Positive
    track: Literal["none", "mlflow", "wandb", "trackio", "tensorboard"]
    eval_size: NonNegative
    validation_size: NonNegative
    keep_best: bool
    groups: Literal["tree", "chain", "verified"]
    iterations: Positive
    samples: Positive
    requeue_iterations: NonNegative
    requeue_limit: NonNegative
    extend: Literal["flat", "mixed", "none"]
    chain_samples: Annotated[int, Field(ge=2)]
    reward: Literal["hre", "combined"] | None
    rows_per_round: Positive
    demonstrations: NonNegative
    demonstration_share: Annotated[float, Field(ge=0, lt=1)] | None
    demonstration_weight: NonNegativeFloat
    adapter: Literal["full", "lora"] | None
    micro_batch: Positive | None
    gradient_checkpointing: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)]
    optimizer: Literal["auto", "adamw", "adamw_8bit"]
    precision: Literal["auto", "float32", "bfloat16"]
    merge_dtype: Literal["auto", "float32", "bfloat16"]
    push_to_hub: str | None
    grpo: GrpoConfig
    ppo: PpoConfig
    rft: RftConfig
    legacy: ExpertConfig
    sft: SftConfig
    critic: CriticConfig

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
