"""One frozen configuration: shipped YAML, then the user's YAML, then `KEY=VALUE` overrides. An
unknown key is an error.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin

import yaml
from pydantic import PrivateAttr, ValidationError

from ..errors import ConfigError, suggest_nearest
from ..files import flatten_keys
from ..types import Facts, JsonObject
from .refusals import name_value, refuse_conflicts, split_condition
from .sections import (
    SEARCHES,
    EngineConfig,
    ModelShape,
    ProblemsConfig,
    Read,
    RewardConfig,
    SearchConfig,
    Section,
    Seed,
    ServeConfig,
    StudentModel,
    TeachersConfig,
    TeacherTier,
    defaults_of,
)
from .shipped import (
    find_lost,
    merge_mappings,
    named_file,
    parse_yaml,
    read_yaml,
    shipped_path,
    show_value,
)
from .train import METHOD, TrainConfig, recipe_of

AUTO_LARGE = "llama-3.2-3b"  # what the student `auto` is with CUDA
AUTO_SMALL = "embedded"  # and without
SMALL = ("package", "scratch")  # paths of students that `sft` trains from scratch


class Config(Section):
    # seed of everything random
    seed: Seed = 7
    # a name of models.yaml; auto: llama-3.2-3b where CUDA is there, the embedded student
    # elsewhere
    student: str = "auto"
    problems: ProblemsConfig = ProblemsConfig()
    engine: EngineConfig = EngineConfig()
    search: SearchConfig = SearchConfig()
    # docs/design.md, section 5
    rewards: RewardConfig = RewardConfig()
    teachers: TeachersConfig = TeachersConfig()
    # each method and command that trains has a recipe, a file beside this one that is laid
    # over it
    train: TrainConfig = TrainConfig()
    # the `serve` command
    serve: ServeConfig = ServeConfig()
    models: dict[str, StudentModel]
    teacher_tiers: dict[str, TeacherTier]

    # the dotted keys to which a user gave another value than the recipe, or the student, has
    _own: frozenset[str] = PrivateAttr(frozenset())

    @property
    def own(self) -> frozenset[str]:
        """The keys that are the user's own, where `load_config` made it; else none."""
        return self._own

    @property
    def answer_budget(self) -> int:
        """Tokens a question where no budget is named: of four usual answers of the student."""
        return 4 * limits_of(self)["reserve"]

    def refuse(self, unread: Mapping[str, str]) -> None:
        """Raise ConfigError where one of these dotted keys is the user's own; the text says why
        nothing would read it, and the fix.
        """
        for key, why in unread.items():
            if key in self.own:
                raise ConfigError(f"{key} is {show_value(attrgetter(key)(self))}, {why}")


def split_key(key: str) -> list[str]:
    """The names of a dotted key. A student's name may hold dots: `models.llama-3.2-3b.path`."""
    parts = key.split(".")
    if parts[0] == "models" and len(parts) > 1:
        field = next(
            (i for i in range(2, len(parts)) if parts[i] in StudentModel.model_fields), len(parts)
        )
        parts = ["models", ".".join(parts[1:field]), *parts[field:]]
    return parts


def nest_key(key: str, value: Any) -> JsonObject:
    """`{"train": {"seed": value}}` for `train.seed`."""
    for part in reversed(split_key(key)):
        value = {part: value}
    return value


def text_type(key: str) -> Any:
    """`str` or `str | None` for a key that holds text, None for every other key."""
    kind: Any = Config
    for part in split_key(key):
        if get_origin(kind) is dict:  # such as `models`
            kind = get_args(kind)[1]
            continue
        # A section may be null.
        sections = [
            some for some in get_args(kind) if isinstance(some, type) and issubclass(some, Section)
        ]
        kind = sections[0] if sections else kind
        if isinstance(kind, type) and issubclass(kind, Section) and part in kind.model_fields:
            kind = kind.model_fields[part].annotation
        else:
            return None
    return kind if kind in (str, str | None) else None


EMPTIED = ("problems.system_prompt",)  # where no text is another thing than none of one's own


def parse_override(text: str) -> JsonObject:
    """`train.optimizer.epochs=2` as a nested mapping. Text is taken as it is written (`null` is
    none where a key may have none); every other value is read as YAML. Raises ConfigError where
    that would leave something out.
    """
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(
            f"--set got {show_value(text)}: write KEY=VALUE, for example --set "
            "train.optimizer.epochs=2"
        )
    kind = text_type(key)
    if kind is not None:
        if kind is not str and (raw == "null" or (raw == "" and key not in EMPTIED)):
            return nest_key(key, None)
        return nest_key(key, "" if raw in ('""', "''") else raw)
    try:
        value: Any = parse_yaml(raw)
        root = yaml.compose(raw, yaml.SafeLoader)
        gone = find_lost(raw)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(
            f"--set {key}: the value {show_value(raw)} is not valid YAML: quote it"
        ) from error
    rest = raw[0 if root is None else root.end_mark.index :].strip()
    if rest or gone is not None:
        why = (
            f"{show_value(rest)} would be left out: leave it out, or quote the value"
            if gone is None
            else gone[1]
        )
        raise ConfigError(f"--set {key} is {show_value(raw)}: {why}")
    return nest_key(key, value)


def load_config(
    path: str | Path | None = None,
    overrides: Iterable[str | Facts] = (),
    recipe: str | None = None,
    base: Facts = MappingProxyType({}),
) -> Config:
    """The resolved configuration.

    Args:
        path: a YAML file with some of training.yaml's keys (also `models` and `teacher_tiers`), a
            shipped recipe's name, or None.
        overrides: `KEY=VALUE` texts or nested mappings, later ones win.
        recipe: a shipped YAML file that lies between training.yaml and all that is given.
        base: what lies between that and all that is given.

    Raises:
        ConfigError: one sentence naming the first wrong field, its value and the fix.
    """
    merged = read_yaml(shipped_path("training.yaml"))
    merged["models"] = read_yaml(shipped_path("models.yaml"))
    merged["teacher_tiers"] = read_yaml(shipped_path("teacher_models.yaml"))
    layers = user_layers(path, overrides)
    if recipe is not None:
        merged = beneath_edits(read_yaml(shipped_path(recipe)), merged)
    if path is not None and named_file(Path(path)) != Path(path):  # a shipped recipe, too
        merged = merge_mappings(merged, layers.pop(0))
    merged = plain = beneath_edits(base, merged)
    for layer in layers:
        merged = merge_mappings(merged, layer)
    config = validate_config(merged)
    # Of the same student: what is null is as its entry says.
    usual = validate_config(plain | {name: merged[name] for name in ("student", "models")})
    config._own = frozenset(
        key for key, _ in keys_of(Config) if attrgetter(key)(config) != attrgetter(key)(usual)
    )
    check_read(config)
    return config


def read_problems(**settings: Any) -> ProblemsConfig:
    """The section `problems` with these settings over the shipped ones."""
    return load_config(overrides=[{"problems": settings}]).problems


def beneath_edits(recipe: Facts, merged: Facts) -> JsonObject:
    """`merged` with a recipe's values, but for those keys of training.yaml and models.yaml that
    don't have the value they came with: that is the user's, and stays. A shape is the user's as a
    whole.
    """

    def whole(key: str) -> str:
        return key.partition(".shape.")[0]

    now = dict(flatten_keys(merged))
    came = defaults_of(Config) | {"models": {"small": {"shape": ModelShape().model_dump()}}}
    edited = {whole(key) for key, value in flatten_keys(came) if now.get(key) != value} - {METHOD}
    result = dict(merged)
    for key, value in flatten_keys(recipe):
        if whole(key) not in edited:
            result = merge_mappings(result, nest_key(key, value))
    return result


def check_read(config: Config, **facts: str) -> None:
    """Raise ConfigError where a key is the user's own and nothing reads it, by what its field says
    (`sections.Read`). `facts` are of the command; without any, only those of engine and search are
    asked for that read each other.
    """
    unread = dict[str, str]()
    for key, read in keys_of(Config):
        if not facts and (key.count(".") > 1 or not key.startswith(READ_BY_ALL)):
            continue
        for condition in read.conditions:
            if (other := other_reader(config, facts, condition)) is not None:
                fix = Read().fix if condition == SEARCHES else read.fix
                unread.setdefault(key, f"{other}: {fix}")
    config.refuse(unread)


def other_reader(config: Config, facts: Mapping[str, str], condition: str) -> str | None:
    """What there is in the place of what would read a key, by a condition of its `Read`; None where
    the condition holds, or where the command alone knows.
    """
    said = []
    for each in condition.split("|"):
        key, equals, values = split_condition(each)
        if key not in facts and (not facts or "." not in key) and not key.startswith(READ_BY_ALL):
            return None
        value = facts[key] if key in facts else attrgetter(key)(config)
        name = name_value(value)
        if (name in values) == equals:
            return None
        who = f"`{facts['command']}` doesn't read it" if key in facts else "nothing reads it"
        where = "" if key == "command" else f" where {key} is {name}"
        said.append(f"{who}{where} ({each} does)" if equals else f"{who}{where}")
    return f"and {' and '.join(said)}"


READ_BY_ALL = ("engine.", "search.")


def user_layers(path: str | Path | None, overrides: Iterable[str | Facts]) -> list[Facts]:
    """What a user gives on top of the shipped files, one nested mapping each, later ones win."""
    first = [] if path is None else [read_yaml(named_file(Path(path)))]
    return [
        parse_override(layer) if isinstance(layer, str) else layer for layer in [*first, *overrides]
    ]


def load_answering(
    path: str | Path | None = None,
    overrides: Iterable[str | Facts] = (),
    guided: bool = False,
) -> Config:
    """`load_config` for what answers and learns nothing: it draws at the student's own
    temperature. `guided`: a value network alone guides the search, unless a rollout is named.
    """
    return load_config(path, overrides, "answer.yaml", GUIDED_SEARCH if guided else {})


GUIDED_SEARCH = {"search": {"rollout": "none", "select": "puct"}}


def load_training(path: str | Path | None = None, overrides: Iterable[str | Facts] = ()) -> Config:
    """`load_config` over the recipe of the method that is given as `train.method`; where none is,
    of expert iteration.
    """
    overrides = [*overrides]
    layers = user_layers(path, overrides)
    # Validated without a recipe first, so that a method there isn't gets the ordinary sentence.
    return load_config(path, overrides, recipe_of(load_config(None, layers).train.method))


def validate_config(raw: Facts) -> Config:
    """`raw` as a Config, or ConfigError for the first field that is wrong."""
    if not isinstance(raw, Mapping):
        raise ConfigError(
            f"the configuration is {show_value(raw)}, which is no mapping: write its keys"
        )
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(explain_error(error)) from error
    config = with_source(with_backend(with_tier(with_limits(config, raw.get("search", {})))))
    urls = [("engine.vllm.base_url", config.engine.vllm.base_url)]
    urls += [
        (f"teacher_tiers.{name}.base_url", tier.base_url or "")
        for name, tier in config.teacher_tiers.items()
    ]
    for field, url in urls:
        if "@" in url.partition("://")[2].partition("/")[0]:  # run.json keeps the configuration
            raise ConfigError(
                f"{field} has a name or password in it: "
                "put the key into the variable that key_variable names"
            )
    refuse_conflicts(config, "configuration")
    return config


THINKING_STEP = 10  # tokens of a short step of thinking


def limits_of(config: Config) -> dict[str, Any]:
    """The limits, steps and temperature of a response that the student's entry has."""
    entry = config.models[resolve_name(config)]
    thinking = entry.thinking_tokens if entry.thinking == "on" else 0
    own = {key: getattr(entry, key) for key in (*SearchConfig.of_student, "reserve")}
    own["max_tokens"] += thinking
    own["max_depth"] += thinking // THINKING_STEP
    own["reserve"] += thinking
    return own


def with_limits(config: Config, asked: Facts) -> Config:
    """`config` with `limits_of` it, where `asked`, the section `search` as it was written, gives
    null.
    """
    own = limits_of(config)
    verify = {"reserve": own.pop("reserve")}
    update: dict[str, Any] = {key: value for key, value in own.items() if asked.get(key) is None}
    if asked.get("verify", {}).get("reserve") is None:
        update["verify"] = verify
    return config.with_values(search=update)


def with_tier(config: Config) -> Config:
    """`config` with `teachers.tier: auto` resolved: "free" where its key is set and teachers can
    take part, else "none".
    """
    if config.teachers.tier != "auto":
        return config
    proposes = config.search.mode == "step" and config.train.groups != "verified"
    alone = os.environ.get("WORLD_SIZE", "1") == "1"  # teachers have one budget, of one process
    tier = "free" if proposes and alone and missing_key(config, "free") is None else "none"
    return config.with_values(teachers={"tier": tier})


def with_backend(config: Config) -> Config:
    """`config` with `engine.backend: auto` resolved: vLLM on CUDA, where it is installed, the
    weights are a folder's or the hub's and one process trains; else the in-process engine.
    """
    if config.engine.backend != "auto":
        return config
    fits = wants_vllm(config) and vllm_here()
    return config.with_values(engine={"backend": "vllm" if fits else "inprocess"})


def wants_vllm(config: Config) -> bool:
    """Whether vLLM would serve the configured student best."""
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    path = config.models[resolve_name(config)].path
    return alone and cuda_here() and path not in SMALL and path[-5:] != ".gguf"


def with_source(config: Config) -> Config:
    """`config` with `problems.source: auto` resolved: GSM8K for a language model on CUDA, else the
    embedded problems.
    """
    if config.problems.source != "auto":
        return config
    small = config.models[resolve_name(config)].path in SMALL
    source = "gsm8k" if cuda_here() and not small else "embedded"
    return config.with_values(problems={"source": source})


def vllm_here() -> bool:
    """Whether vLLM is installed."""
    return find_spec("vllm") is not None


def missing_key(config: Config, tier: str) -> str | None:
    """The environment variable that a tier's teachers need and that isn't set, or None."""
    variable = config.teacher_tiers[tier].key_variable
    return variable if variable is not None and not os.environ.get(variable, "").strip() else None


def resolve_name(config: Config, name: str | None = None) -> str:
    """`name`, or the configured one, with `auto` resolved: Llama 3.2 3B where CUDA is there, else
    the embedded one.
    """
    chosen = config.student if name is None else name
    if chosen == "auto":
        return AUTO_LARGE if cuda_here() else AUTO_SMALL
    if chosen not in config.models:
        names = ["auto", *config.models]
        fix = f"choose one of {', '.join(names)}, or add it to models.yaml"
        raise ConfigError(f"student is {chosen!r}: {suggest_nearest(chosen, names, fix)}")
    return chosen


@lru_cache
def cuda_here() -> bool:
    """Whether there is a CUDA device, the same for the whole process. torch, which takes seconds to
    load, is asked where there may be one.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1")
    driver = shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()
    if hidden or not driver or find_spec("torch") is None or version("torch").endswith("+cpu"):
        return False
    return import_module("torch").cuda.is_available()


def explain_error(error: ValidationError) -> str:
    """A pydantic error as one sentence: field, value, fix."""
    # An unknown key first: it may be the misspelt name of one that is missing.
    errors = sorted(
        error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden"
    )
    first = errors[0]
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown configuration key {field}: {near_key(field)}"
    if first["type"] == "missing":
        return f"configuration key {field} is missing: add it"
    if first["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        meant = suggest_nearest(str(first["input"]), known)
        if meant:
            return f"{field} is {show_value(first['input'])}: {meant}"
    reason = first["msg"][0].lower() + first["msg"][1:]
    reason = reason.replace("valid tuple", "list, such as [1, 2]")
    return f"{field} is {show_value(first['input'])}: {reason[:300]}"


def keys_of(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Read]]:
    """The dotted keys of a section, and of the sections in it, and where each is read."""
    for name, field in section.model_fields.items():
        own = (each for each in field.metadata if isinstance(each, Read))
        kind = field.annotation
        inner = kind if isinstance(kind, type) and issubclass(kind, Section) else None
        yield prefix + name, next(own, section.read) if inner is None else Read()
        if inner is not None:
            yield from keys_of(inner, f"{prefix}{name}.")


ENTRIES: dict[str, type[Section]] = {"models": StudentModel, "teacher_tiers": TeacherTier}


def near_key(field: str) -> str:
    """What to write in place of an unknown key: the keys whose last name is spelt like its own."""
    keys = [key for key, _ in keys_of(ENTRIES.get(field.partition(".")[0], Config))]
    see = "see config/training.yaml for the keys there are"
    return suggest_nearest(field, keys, see, lambda key: key.rpartition(".")[2])
