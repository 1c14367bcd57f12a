"""Which student is meant and what its folder holds, told before torch is imported."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config.cache import cache_folder
from ..config.hub import ask_hub_or_cache, offline_because
from ..config.load import AUTO_SMALL, SMALL, Config, nest_key, resolve_name
from ..config.objects import at_home, own_object
from ..config.sections import SELECTOR_NAMES, SearchConfig, StudentModel
from ..engine.device import multiplies_fast, tell_once
from ..errors import CheckpointError, ConfigError, first_line, suggest_nearest
from ..files import read_object, write_json
from ..types import JsonObject

PACKAGED = Path(__file__).parent.parent / "assets" / "student"
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]*[\w-]")
GGUF = ".gguf"
INSTALL_GGUF = "install alphazero-llm-trainer[gguf]"
ADAPTER_FILE, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
VALUE = "value"  # the folder, in a student's, of the value over its states that was learnt with it
FACTS = "student.json"  # what a student's folder says of itself, beside what transformers reads
ABOUT_ATTENTION = re.compile("atten|attn|`kernels`", re.IGNORECASE)
TEMPLATE = "chat_template.jinja"
# What transformers reads, the first kind.
WEIGHT_FILES = ("model*.safetensors", "pytorch_model*.bin")
LORA_FROM = 300_000_000  # parameters from which on adapters are trained, where nobody says

log = logging.getLogger(__name__)


def from_scratch(config: Config) -> bool:
    """Whether `sft` makes this student from nothing; every other one goes on from its weights."""
    return config.student == "auto" or config.models[resolve_name(config)].path in SMALL


def find_model(
    model: str, config: Config, asked: str = "--model"
) -> tuple[JsonObject, Path | None]:
    """What `--model` means (or the key that is `asked` for one): keys of the configuration, and a
    folder where it names one.

    It is a student of models.yaml, a folder, a hub id or a GGUF file. What models.yaml doesn't know
    becomes a student of its own: a hub id, called as it ends, a file, and a folder with a model
    (see `read_specification`). A folder is weights of another student where the configuration names
    one, where it speaks as the embedded student does, and where it has an adapter alone. Raises
    ConfigError for anything else.
    """
    if model == "auto" or model in config.models:
        return {"student": model}, None
    file = at_home(model, asked)
    if file.is_dir():
        return of_folder(file, config)
    if file.suffix == GGUF and file.is_file():
        name = f"{file.stem.lower()}-gguf"
        return {"student": name, "models": {name: {"path": str(file)}}}, None
    for name, spec in config.models.items():
        if model in (spec.path, spec.mirror):
            return {"student": name, "models": {name: {"path": model}}}, None
    if HUB_ID.fullmatch(model):
        name = model.partition("/")[2].lower()
        return {"student": name, "models": {name: {"path": model}}}, None
    names = ["auto", *config.models]
    one = f"use one of {', '.join(names)}"
    raise ConfigError(
        f"{asked} {model} is no folder or GGUF file here, no hub id (OWNER/NAME) and no student of "
        f"models.yaml: {suggest_nearest(model, names, one)}"
    )


def of_folder(folder: Path, config: Config) -> tuple[JsonObject, Path | None]:
    """`find_model` for a folder."""
    if config.student != "auto":
        return {}, folder
    check_folder(folder)
    if speaks_as(folder, PACKAGED):
        return {"student": AUTO_SMALL}, folder
    facts = read_note(folder, FACTS)  # {} where `write_facts` wrote none
    if not (folder / "config.json").is_file():
        return (
            {"student": facts["name"], "models": {facts["name"]: facts["base"]}}
            if "base" in facts
            else {}
        ), folder
    name, spec = read_specification(folder, facts)
    return {"student": name, "models": {name: spec}}, None


def read_note(folder: Path, name: str) -> JsonObject:
    """A JSON object of a folder, {} where it has none. Raises CheckpointError for what can't be
    read.
    """
    try:
        return read_object(folder / name) if (folder / name).is_file() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"folder {folder} has a broken {name} ({error}): restore that file"
        ) from error


def trains_widened(config: Config, spec: StudentModel) -> bool:
    """Whether a training holds a student's half-precision weights in float32: adapters alone are
    trained, and this device has no quick products in that precision.
    """
    return (config.train.adapter or spec.adapter) == "lora" and not multiplies_fast(spec.dtype)


def speaks_as(folder: Path, other: Path) -> bool:
    """Whether two folders have one chat template."""
    try:
        return (folder / TEMPLATE).read_bytes() == (other / TEMPLATE).read_bytes()
    except OSError:
        return False


def read_specification(folder: Path, facts: JsonObject) -> tuple[str, JsonObject]:
    """The name and the entry of models.yaml of a folder with a model: what its config.json and its
    `facts` say.

    The name is what `facts` say, else the folder's. A model of `LORA_FROM` parameters or more, or
    of 4 bits, gets LoRA over weights as they are; others are trained whole, in float32.
    """
    shape = read_note(folder, "config.json")
    precision = shape.get("dtype", shape.get("torch_dtype"))
    half = precision in ("bfloat16", "float16")
    size = weight_bytes(folder)
    large = size >= LORA_FROM * (2 if half else 4) or "quantization_config" in shape
    adapter = facts.get("adapter", "lora" if large else "full")
    spec = {
        "path": str(folder),
        "adapter": adapter,
        "dtype": precision if half and adapter == "lora" else "float32",
        "prompts": facts.get("prompts", {}),
        "thinking": facts.get("thinking"),
    }
    name = folder.resolve().name.lower()
    return facts.get("name", f"{name}-folder" if name in ("auto", AUTO_SMALL) else name), spec


def write_facts(folder: Path, name: str, spec: StudentModel, adapter: bool = False) -> None:
    """Write what the next run of a student's folder can't read in its weights: name, what is
    trained of it, its prompts, and the base of an `adapter`. Students of the embedded kind are
    known by their template.
    """
    if spec.path not in SMALL:
        facts: JsonObject = {"name": name, "adapter": spec.adapter, "prompts": spec.prompts}
        if spec.thinking is not None:
            facts["thinking"] = spec.thinking
        write_json(
            folder / FACTS, facts | ({"base": spec.model_dump(mode="json")} if adapter else {})
        )


def trained_with(student: Any, source: str) -> StudentModel:
    """A student's entry with what it is told now as the prompt that it was trained with on
    `source`.
    """
    prompt = student.opening.system_prompt
    return (
        student.spec
        if prompt is None
        else student.spec.with_values(prompts=student.spec.prompts | {source: prompt})
    )


def fetched_path(repository: str) -> Path:
    """Where `fetch` puts a hub repository's model that it had to take from elsewhere; it may not be
    there.
    """
    return cache_folder() / "models" / repository.replace("/", "--")


def weights_of(spec: StudentModel) -> str:
    """Where a student's own weights are read: its path, or what `fetch` put in its place, or the
    mirror where the hub's gate would refuse the path.
    """
    if HUB_ID.fullmatch(spec.path) and not Path(spec.path).exists():
        folder = fetched_path(spec.path)
        if (folder / "config.json").is_file():
            return str(folder)
        if spec.gated and spec.mirror is not None and cached_config(spec.path) is None:
            from huggingface_hub import get_token

            if get_token() is None:
                tell_once(
                    f"{spec.path} is gated and HF_TOKEN isn't set: {spec.mirror} takes its place"
                )
                return spec.mirror
    return spec.path


def stored_bytes(source: str) -> int:
    """What the weights in a folder, or of a hub model in the hub's cache, take on disk; 0 where
    there are none.
    """
    folder = PACKAGED if source == "package" else Path(source)
    if not folder.is_dir() and (config := cached_config(source)) is not None:
        folder = config.parent
    return weight_bytes(folder)


def weight_bytes(folder: Path) -> int:
    """What the weights in a folder take. It may have them in two formats, and copies in files that
    nothing reads, such as Mistral's consolidated.safetensors.
    """
    kinds = ([*folder.glob(pattern)] for pattern in WEIGHT_FILES)
    return sum(file.stat().st_size for file in next(filter(None, kinds), ()))


def adapter_file(folder: Path) -> Path:
    """The file with an adapter's numbers: safetensors, or where there is none peft's older one."""
    older = folder / "adapter_model.bin"
    here = (folder / ADAPTER_FILE).is_file() or not older.is_file()
    return folder / ADAPTER_FILE if here else older


def cached_config(repository: str) -> Path | None:
    """The config.json of a hub model that is in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):
        path = try_to_load_from_cache(repository, "config.json")
        return Path(path) if isinstance(path, str) else None
    return None


def check_weights(config: Config, folder: Path | str | None = None) -> str:
    """The student's name, and where its weights are read if that isn't here, for people. Raises
    CheckpointError, before torch is loaded, where the hub has to be asked and doesn't answer.
    """
    name = resolve_name(config)
    spec = config.models[name]
    folder = config.train.student if folder is None else folder
    if folder is not None or config.engine.backend == "openai":
        return str(folder or name)
    source = weights_of(spec)
    if not HUB_ID.fullmatch(source) or Path(source).exists():
        return name
    if cached_config(source) is None:
        ask_hub_or_cache()
        if offline_because():
            raise CheckpointError(why_not_loaded(name, source, spec, OSError()))
    return f"{name} ({source})"


def why_not_loaded(name: str, source: str, spec: StudentModel, error: BaseException) -> str:
    """One sentence on a model that can't be loaded: transformers' own first line, and what to do
    about it.
    """
    complaint = first_line(error)
    if spec.attn_implementation is not None and ABOUT_ATTENTION.search(complaint):
        return (
            f"models.{name}.attn_implementation is {spec.attn_implementation}, which can't be had "
            f"here ({complaint}): install what it needs, or set it to null"
        )
    if Path(source).is_dir():
        return f"student {source} can't be loaded ({complaint}): check the folder"
    complaint = offline_because() or complaint
    mirror = (
        ""
        if spec.mirror in (None, source)
        else f", or use its mirror with --set models.{name}.path={spec.mirror}"
    )
    licence = (
        f", its licence accepted at https://huggingface.co/{source} and HF_TOKEN set"
        if spec.gated and source == spec.path
        else ""
    )
    return (
        f"student {name} ({source}) can't be loaded ({complaint}): check its name, connect "
        f"once{licence}, run alphazero-llm-trainer fetch {name}, "
        f"or name a downloaded folder with --set models.{name}.path=DIR{mirror}"
    )


def is_own(value: Path) -> bool:
    """Whether a value is the user's own code, `file.py:NAME`, and no folder."""
    return ".py:" in value.name


def check_critic(folder: Path, kind: str, what: str) -> None:
    """Raise ConfigError where a critic that the user called `what` is neither a folder nor a public
    PRM that can be had.
    """
    if folder.is_dir():
        return
    if kind == "value" and is_own(folder):
        own_object(str(folder), what.partition(" ")[0])
        return
    own = ", or file.py:NAME of your own" if kind == "value" else ""
    if kind != "prm" or not HUB_ID.fullmatch(str(folder)):
        raise ConfigError(f"{what} is no folder: name one that the command {kind} wrote{own}")
    if cached_config(str(folder)) is None:
        ask_hub_or_cache()
        why = offline_because()
        if why:
            raise ConfigError(
                f"{what} is no folder, and not in the hub's cache ({why}): "
                "name a folder, or connect"
            )


def carried_value(
    config: Config, folder: Path | None, student: Any = None
) -> tuple[Config, Path | None]:
    """The configuration for a search under the value that a student's own folder carries (see
    `with_discount`), and the value's folder, None where there is none, or where the weights of a
    `student` that is loaded have changed since. `folder` is where the weights are from, None for
    the named student's.
    """
    folder = folder if student is None else student.folder
    place = (Path(config.models[resolve_name(config)].path) if folder is None else folder) / VALUE
    card = read_note(place, "critic.json")
    if not card:
        return config, None
    if student is not None and card.get("base") != student.weights:
        return config, None
    if config.engine.backend != "inprocess":
        log.warning("%s is left out: the in-process engine alone reads it", place)
        return config, None
    return with_discount(config, place), place


CHOSEN = "search"  # of critic.json: what validation chose, see `eval.tune`
# Where it hasn't: a learned value that was never held against none isn't used, for some harm.
UNTRIED = {"select": "phs", "helps": False}
CHOOSES = ("select", "backup", "exploration")


def with_chosen(config: Config, value: Path) -> tuple[Config, Path | None, str]:
    """The search under a rule that validation chose for the student that carries this value; the
    value's folder, None where the search is better without it; and a sentence about it. What the
    user set of the search wins: see `sets_search`.
    """
    if sets_search(config):
        return config, value, "this student carries a value, which guides the search that is set"
    card = read_note(value, "critic.json")
    record = card.get(CHOSEN, UNTRIED)
    try:
        if record["select"] not in SELECTOR_NAMES:  # a file's code would run
            raise ValueError(record["select"])
        search = SearchConfig.model_validate({k: record[k] for k in CHOOSES if k in record})
        helps = bool(record["helps"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{value} has a broken critic.json ({CHOSEN}: {first_line(error)}): choose again with "
            "eval --tune"
        ) from error
    config = config.with_values(search={key: getattr(search, key) for key in CHOOSES})
    said = f"this student carries a value; search.select={search.select} "
    said += "goes by it" if helps else "goes without it"
    untried = ": eval --tune says whether it helps"
    said += ", as validation chose" if CHOSEN in card else untried
    return config, value if helps else None, said


def sets_search(config: Config) -> bool:
    """Whether the user said how to search, so that nothing else does."""
    return any(f"search.{key}" in config.own for key in (*CHOOSES, "mode", "rollout"))


def with_discount(config: Config, value: Path) -> Config:
    """`config` with the discount that the value in this folder was learnt under, where
    `search.discount` is 1.
    """
    if config.search.discount != 1.0:
        return config
    card = read_note(value, "critic.json")
    return config.with_values(search={"discount": card.get("discount", 1.0)})


def check_folder(folder: Path) -> None:
    """Raise CheckpointError for a folder with neither a model nor an adapter, or with both."""
    model, adapter = ((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG))
    if model and adapter:
        raise CheckpointError(advise_one(str(folder)))
    if not (model or adapter):
        inner = folder / "student"  # of a run's folder
        fix = (
            f"did you mean {inner}?"
            if inner.is_dir()
            else "name a folder that `train` or `sft` wrote"
        )
        raise CheckpointError(f"student folder {folder} has no config.json: {fix}")
    for name in ("config.json", "generation_config.json"):  # the latter's ends would be lost
        read_note(folder, name)


def advise_one(source: str) -> str:
    """What to do with a model and an adapter of it in one place: what training starts from would be
    the one or the other.
    """
    return (
        f"student {source} is a model and an adapter: move {ADAPTER_CONFIG} and {ADAPTER_FILE} to "
        "a folder of their own, "
        f"and make one model of both with `merge --adapter FOLDER --model {source} --out DIR`"
    )


def with_model(
    model: str,
    overrides: Sequence[Any],
    load: Callable[[Sequence[Any]], Config],
    key: str | None = None,
) -> tuple[Config, Path | None]:
    """The configuration that `load` makes of `overrides` and of what `model` means, and the folder
    where it names one.

    The folder goes to the configuration's key `key` as well. Behind `engine.openai` a model is
    called as its server calls it.
    """
    config = load(overrides)
    if config.engine.backend == "openai":
        entries = config.models.items()
        known = next((entry for name, entry in entries if model in (name, entry.path)), None)
        own = {} if known is None else known.model_dump(mode="json", exclude_unset=True)
        return load(
            [*overrides, {"student": model, "models": {model: own | {"path": model}}}]
        ), None
    named, folder = find_model(model, config)
    if folder is not None:
        check_folder(folder)
        named = named if key is None else {**named, **nest_key(key, str(folder))}
    return load([*overrides, named]), folder
