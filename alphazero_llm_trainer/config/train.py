"""The `train` section of the configuration: rounds, trainers and critics."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from ..errors import ConfigError, nearest
from .objects import own_object
from .sections import (
    BY_LEARNERS,
    BY_TRAINERS,
    FITS,
    LEARNS,
    SEARCHES,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Read,
    Section,
    Share,
    on_or_off,
)
from .shipped import read_yaml, recipes, shipped

# Parameters from which on products dominate a forward: then bfloat16 and more threads than one pay,
# and learning rates are smaller. Below it threads wait for each other longer than they compute, the
# more so on a busy machine.
LARGE = 50_000_000


METHOD = "train.method"


def a_method(value: str) -> str:
    """The name of a method, which is its recipe's, or the address of one's own."""
    if ".py:" not in value:
        recipe_of(value)
    return value


@lru_cache(maxsize=64)
def recipe_of(method: str) -> str:
    """The shipped recipe of a method: config/METHOD.yaml, and of one's own that of the method that
    it is made from. Raises ConfigError where there is none.
    """
    name = method if ".py:" not in method else getattr(own_object(method, METHOD), "name", None)
    recipe = f"{name}.yaml"
    try:
        known = name == read_yaml(shipped(recipe)).get("train", {}).get("method")
    except ConfigError:
        known = False
    if not known:
        fix = "name a method of config/training.yaml, or file.py:NAME of your own"
        raise ConfigError(f"{METHOD} is {method!r}: {nearest(method, recipes(), fix)}")
    return recipe


class Rates(NamedTuple):
    """Learning rates where none is configured: of adapters, of all of a small model, and of all of
    a large one.
    """

    adapter: float = 5e-4
    small: float = 5e-4
    large: float = 5e-5


class OptimizerConfig(Section):
    place = "train.optimizer"
    read = BY_TRAINERS
    name: Literal["auto", "adamw", "adamw_8bit"]
    learning_rate: PositiveFloat | None
    batch_size: Positive
    epochs: Annotated[Positive, Read(FITS, "train.sft_steps=null")]
    warmup: NonNegative
    max_grad_norm: PositiveFloat
    weight_decay: NonNegativeFloat

    def rate(self, rates: Rates, parameters: int, adapter: str) -> float:
        """The configured learning rate, else that of `rates` for a model of so many parameters, of
        which all ("full") or an adapter's ("lora") are trained.
        """
        if self.learning_rate is not None:
            return self.learning_rate
        if adapter == "lora":
            return rates.adapter
        return rates.large if parameters >= LARGE else rates.small


class CriticConfig(Section):
    """How a value network and a process reward model are trained, and the questions that are
    searched for them.
    """

    place = "train.critic"
    read = Read("command=value,prm")
    questions: Annotated[int, Field(ge=10), Read("command=value,prm", SEARCHES)]
    margin: Annotated[float, Field(gt=0, le=1)]
    least_outcomes: Positive
    format: Annotated[
        Literal["rlhflow", "qwen-prm"] | None, Read("train.credit=process|command=eval,serve")
    ]


class TrainConfig(Section):
    place = "train"
    read = Read("command=train")
    method: Annotated[str, AfterValidator(a_method), BY_LEARNERS]
    student: Annotated[str | None, Read("command=train", fix="name it with --model")]
    num_examples: Annotated[Positive, Read("command=train,value,prm", SEARCHES)]
    tokens: Positive | None
    preflight: NonNegative
    questions_per_round: Positive
    checkpoint_dir: Annotated[str, Read("command=train,eval")]
    save_every: Positive
    log_interval: Positive | None
    track: Literal["none", "mlflow", "wandb", "trackio", "tensorboard"]
    eval_size: Annotated[NonNegative, Read("command=train,sft")]
    validation_size: Annotated[NonNegative, Read("command=train,sft")]
    keep_best: Annotated[bool, BY_TRAINERS]
    keep_checkpoints: Positive | None
    groups: Annotated[Literal["tree", "chain", "verified"], BY_LEARNERS]
    requeue_limit: Annotated[NonNegative, Read(LEARNS, SEARCHES, "search.budget_tokens=null")]
    reward: Annotated[Literal["hre", "combined"] | None, BY_LEARNERS]
    adapter: Annotated[
        Literal["full", "lora"] | None,
        Read(f"{FITS}|engine.backend=vllm,vllm-server", "scratch=no"),
    ]
    micro_batch: Annotated[Positive | None, BY_TRAINERS]
    gradient_checkpointing: Annotated[
        Literal["auto", "on", "off"], BeforeValidator(on_or_off), BY_TRAINERS
    ]
    precision: Annotated[Literal["auto", "float32", "bfloat16"], BY_TRAINERS]
    pack: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)]
    push_to_hub: str | None
    demonstrations: Annotated[NonNegative, Read(FITS, "searches=yes|command=sft")]
    demonstration_share: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None, Read("command=train,value,prm", SEARCHES)
    ]
    optimizer: OptimizerConfig
    updates_per_round: Positive
    buffer_passes: Positive
    rows_per_round: Positive
    clip_low: Share
    clip_high: Share
    kl_coefficient: NonNegativeFloat
    credit: Literal["group", "step", "process", "path", "visits", "gumbel"]
    value_coefficient: NonNegativeFloat
    teacher: str | None
    prm: Annotated[str | None, Read("command=train", "train.credit=process")]
    process_weight: Annotated[NonNegativeFloat, Read("command=train", "train.credit=process")]
    negative_weight: Share
    teacher_rows: Annotated[bool, BY_LEARNERS]
    gae_lambda: Share
    critic_rounds: NonNegative
    sft_steps: Annotated[Positive | None, Read("command=sft,value,prm")]
    evaluate_every: Annotated[Positive, Read("command=sft,value,prm")]
    critic: CriticConfig

    @property
    def process(self) -> bool:
        """Whether a process reward model scores the steps of responses."""
        return self.credit == "process"

    def recomputes(self, cuda: bool, quantised: bool) -> bool:
        """Whether a backward pass computes the activations again: `auto` does on CUDA and over
        4-bit weights.
        """
        return self.gradient_checkpointing == "on" or (
            self.gradient_checkpointing == "auto" and (cuda or quantised)
        )

    def in_eight_bits(self, cuda: bool, quantised: bool) -> bool:
        """Whether the optimiser's states have 8 bits: `auto` takes them over 4-bit weights on
        CUDA.
        """
        return self.optimizer.name == "adamw_8bit" or (
            self.optimizer.name == "auto" and cuda and quantised
        )
