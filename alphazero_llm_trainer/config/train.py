"""The `train` section of the configuration: rounds, trainers and critics."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from ..errors import ConfigError, suggest_nearest
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
from .shipped import read_yaml, recipe_names, shipped_path

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
        known = name == read_yaml(shipped_path(recipe)).get("train", {}).get("method")
    except ConfigError:
        known = False
    if not known:
        fix = "name a method of config/training.yaml, or file.py:NAME of your own"
        raise ConfigError(f"{METHOD} is {method!r}: {suggest_nearest(method, recipe_names(), fix)}")
    return recipe


class Rates(NamedTuple):
    """Learning rates where none is configured: of adapters, of all of a small model, and of all of
    a large one.
    """

    adapter: float = 5e-4
    small: float = 5e-4
    large: float = 5e-5


class OptimizerConfig(Section):
    read = BY_TRAINERS
    # auto | adamw | adamw_8bit (paged, bitsandbytes); auto: 8 bits where the student is
    # quantised and CUDA is there
    name: Literal["auto", "adamw", "adamw_8bit"] = "auto"
    # cosine after the warm-up; null: 5e-4 (ppo 3e-4; alphazero 2e-3 for all of a small
    # model), less for all of a model of 50 M parameters or more; sft 2e-4
    learning_rate: PositiveFloat | None = None
    # rows an update, replayed demonstrations included
    batch_size: Positive = 16
    # passes over a round's rows; expert iteration, alphazero, rft and legacy: at most
    epochs: Annotated[Positive, Read(FITS, "train.sft_steps=null")] = 4
    # rounds over which the learning rate rises; sft: updates. A quarter of the run at most:
    # a recipe's is cut in a short run, yours is refused
    warmup: NonNegative = 1
    # gradients are scaled down to this norm
    max_grad_norm: PositiveFloat = 1.0
    # of AdamW
    weight_decay: NonNegativeFloat = 0.0

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

    read = Read("command=value,prm")
    # fresh training questions that are searched where no data is given
    questions: Annotated[int, Field(ge=10), Read("command=value,prm", SEARCHES)] = 2000
    # least difference of two sibling steps' mean outcomes, of three responses each, that
    # makes them a pair
    margin: Annotated[float, Field(gt=0, le=1)] = 0.5
    # rlhflow | qwen-prm: how a public PRM's folder (one without critic.json) is read
    format: Annotated[
        Literal["rlhflow", "qwen-prm"] | None, Read("train.credit=process|command=eval,serve")
    ] = None


class TrainConfig(Section):
    read = Read("command=train")
    # expert_iteration | alphazero | rft | grpo | ppo | distill | legacy | file.py:NAME
    method: Annotated[str, AfterValidator(a_method), BY_LEARNERS] = "expert_iteration"
    # folder of the student that the run starts from, such as checkpoints/run-001/student;
    # null: as `student` says
    student: Annotated[str | None, Read("command=train", fix="name it with --model")] = None
    # training questions; without --num no more than the source has
    num_examples: Annotated[Positive, Read("command=train,value,prm", SEARCHES)] = 4800
    # sampled tokens after which no further round begins, if its questions don't end the run
    # before; the learning rate goes by them then
    tokens: Positive | None = None
    # questions that `train` answers before anything else; it stops where nothing could be
    # learnt
    preflight: NonNegative = 8
    # questions searched between two updates of the student
    questions_per_round: Positive = 96
    # where run folders go
    checkpoint_dir: Annotated[str, Read("command=train,eval")] = "checkpoints"
    # questions between two checkpoints
    save_every: Positive = 960
    # questions after each of which a line says how far the run is; null: after ten silent
    # seconds
    log_interval: Positive | None = None
    # none | mlflow | wandb | trackio | tensorboard: where parameters, metrics and artifacts
    # go besides the run folder
    track: Literal["none", "mlflow", "wandb", "trackio", "tensorboard"] = "none"
    # held-out problems before and after
    eval_size: Annotated[NonNegative, Read("command=train,sft")] = 1000
    # held-out problems that every checkpoint is measured on; 0 for none
    validation_size: Annotated[NonNegative, Read("command=train,sft")] = 300
    # end with the best checkpoint by validation accuracy; false: with the last
    keep_best: Annotated[bool, BY_TRAINERS] = True
    # newest ones that stay in the run's folder, beside the best weights; null: all
    keep_checkpoints: Positive | None = 3
    # tree | chain (search.samples whole responses) | verified (single chains whose steps
    # the source's rule judges): where the trajectories of a question come from
    groups: Annotated[Literal["tree", "chain", "verified"], BY_LEARNERS] = "tree"
    # how often a question is searched again where all its trajectories earned the same
    requeue_limit: Annotated[NonNegative, Read(LEARNS, SEARCHES, "search.budget_tokens=null")] = 1
    # hre | combined: what advantages are made of; null: combined with rewards.custom, else
    # hre
    reward: Annotated[Literal["hre", "combined"] | None, BY_LEARNERS] = None
    # full | lora; null: as models.yaml says for the student
    adapter: Annotated[
        Literal["full", "lora"] | None,
        Read(f"{FITS}|engine.backend=vllm,vllm-server", "scratch=no"),
    ] = None
    # rows of one forward; null: a whole minibatch, on a CPU what takes 2 GiB
    micro_batch: Annotated[Positive | None, BY_TRAINERS] = None
    # auto | on | off: compute activations again in the backward pass; auto: on CUDA and
    # over 4-bit weights
    gradient_checkpointing: Annotated[
        Literal["auto", "on", "off"], BeforeValidator(on_or_off), BY_TRAINERS
    ] = "auto"
    # auto | float32 | bfloat16: of the products in training; auto: bfloat16 for bf16
    # students on CUDA and for large ones on a CPU that has it
    precision: Annotated[Literal["auto", "float32", "bfloat16"], BY_TRAINERS] = "auto"
    # auto | on | off, grpo, ppo and distill: responses of one question share its prompt in
    # one sequence; auto: where it is less work, on CUDA under flex_attention
    pack: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)] = "auto"
    # OWNER/NAME on the Hugging Face hub that student/ and adapter/ are uploaded to at the
    # end
    push_to_hub: str | None = None
    # worked solutions that warm-up saw and that are replayed
    demonstrations: Annotated[NonNegative, Read(FITS, "searches=yes|command=sft")] = 500
    # replayed rows in a minibatch; null: a fifth where a source makes its problems
    # (embedded, numbers, pancake), none elsewhere
    demonstration_share: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None, Read("command=train,value,prm", SEARCHES)
    ] = None
    optimizer: OptimizerConfig = OptimizerConfig()
    # expert iteration, alphazero, rft and legacy: updates after each search, at most
    updates_per_round: Positive = 14
    # likewise: passes of a round's updates over the rows of all rounds so far, at most
    buffer_passes: Positive = 3
    # grpo, ppo and distill: policy rows of a round's updates
    rows_per_round: Positive = 32
    # grpo, ppo and distill: the ratio is clipped below 1 minus this
    clip_low: Share = 0.2
    # and above 1 plus this
    clip_high: Share = 0.28
    # KL penalty to what the run started from: of grpo in the loss, of ppo in the reward
    kl_coefficient: NonNegativeFloat = 0.0
    # grpo: group | step | turn | process, a response against its group, Q(child) - V(parent),
    # the same of turns in worlds with a V(parent) of other samples than the child's,
    # outcome and process rewards; alphazero: path | visits | gumbel, the right response,
    # the search's visits, or its improved policy
    credit: Literal["group", "step", "turn", "process", "path", "visits", "gumbel"] = "group"
    # alphazero: of the value's cross-entropy beside the policy's likelihood
    value_coefficient: NonNegativeFloat = 0.3
    # distill: whose probabilities are learnt, a student's folder, a name of models.yaml, a
    # hub id, or the address of a vLLM server
    teacher: str | None = None
    # credit process: folder of the process reward model that scores the steps
    prm: Annotated[str | None, Read("command=train", "train.credit=process")] = None
    # credit process: of the process advantage that is added to the outcome's
    process_weight: Annotated[NonNegativeFloat, Read("command=train", "train.credit=process")] = 0.5
    # grpo: weight of below-average rows; 0 is positives-only
    negative_weight: Share = 0.3
    # grpo and ppo: train on responses with a step of a teacher's too
    teacher_rows: Annotated[bool, BY_LEARNERS] = False
    # ppo; 1: no bootstrapping
    gae_lambda: Share = 1.0
    # sft, value, prm: updates; sft 4000 from scratch (pancake 800); null:
    # train.optimizer.epochs passes over the demonstrations, questions or pairs
    sft_steps: Annotated[Positive | None, Read("command=sft,value,prm")] = None
    # sft and critics: updates between two evaluations
    evaluate_every: Annotated[Positive, Read("command=sft,value,prm")] = 100
    # the `value` and `prm` commands
    critic: CriticConfig = CriticConfig()

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
