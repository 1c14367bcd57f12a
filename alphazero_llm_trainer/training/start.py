"""Whether a training can start here, told before anything is loaded: device, token, keys, libraries, memory, disk."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path

from ..config.load import Config, merge, parse_override, resolve_name, validate
from ..config.sections import ModelShape, StudentModel
from ..engine.device import device_memory
from ..errors import ConfigError
from ..files import check_space, read_object
from ..policy.folders import ADAPTER_CONFIG, PACKAGED, check_folder, weights_of
from ..problems.source import open_source
from .checkpoint import sealed
from .disk import DiskPlan, disk_plan
from .memory import GIB, Forecast, Stage
from .size import RunSize

log = logging.getLogger(__name__)

# What config.json calls the numbers that no shape is without; families that name them otherwise have no forecast.
NAMED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
WORTH_IT = 0.01  # a change that saves less of the peak is no advice


# -- the student's shape -----------------------------------------------------------------------------------------------


def read_shape(path: Path) -> ModelShape | None:
    """The shape in a model's config.json, or None where it says none."""
    try:
        given = read_object(path)
    except (OSError, ValueError):
        return None
    if any(not isinstance(given.get(name), int) or given[name] < 1 for name in NAMED):
        return None
    heads = given["num_attention_heads"]
    return ModelShape(
        layers=given["num_hidden_layers"],
        hidden=given["hidden_size"],
        heads=heads,
        kv_heads=given.get("num_key_value_heads") or heads,
        head_dim=given.get("head_dim") or given["hidden_size"] // heads,
        intermediate=given["intermediate_size"],
        vocabulary=given["vocab_size"],
        tied=given.get("tie_word_embeddings", False),
        plain=given.get("model_type") == "llama" and not given.get("attention_bias", False),
    )


def cached(repository: str) -> Path | None:
    """The config.json of a hub model that is in the local cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, "config.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def start_of(config: Config, spec: StudentModel) -> str:
    """Where a run reads the base's weights: `train.student`, or the student's own path, also below an adapter.

    Raises CheckpointError where `train.student` is no student's folder.
    """
    if config.train.student is None:
        return weights_of(spec)
    started = Path(config.train.student)
    if (started / ADAPTER_CONFIG).is_file():
        return weights_of(spec)
    check_folder(started)
    return str(started)


def find_shape(config: Config, spec: StudentModel) -> ModelShape | None:
    """The student's shape, of its folder, the hub's cache or models.yaml; None where none of them says it."""
    source = start_of(config, spec)
    shape = read_shape((PACKAGED if source == "package" else Path(source)) / "config.json")
    if shape is None and (kept := cached(source)) is not None:
        shape = read_shape(kept)
    return spec.shape if shape is None else shape


# -- memory and disk ---------------------------------------------------------------------------------------------------


def forecast_of(config: Config, stage: Stage = "train") -> tuple[Forecast, str, int] | None:
    """The forecast for this device, the device and its free bytes; None where the student's shape isn't known."""
    spec = config.models[resolve_name(config)]
    shape = find_shape(config, spec)
    if shape is None:
        return None
    device, free, total = device_memory()
    prompt = open_source(config).prompt_tokens * (1 + config.problems.shots)
    return Forecast(config, spec, shape, device == "cuda", stage, prompt, total), device, free


def advice(forecast: Forecast, free: int) -> str:
    """The settings that make it fit, the gentlest first, and what it takes with them; or what is left to do."""
    config, stage = forecast.config, forecast.stage
    critic = stage in ("value", "prm")
    candidates = [
        "train.micro_batch=1",
        "train.gradient_checkpointing=on",
        f"engine.cache_bytes={GIB // 2}",
        "engine.max_batch=8",
        *([] if critic else ["train.optimizer=adamw_8bit", "rewards.use_student_model=false"]),
        *([] if forecast.lora else ["train.adapter=lora"]),
        f"search.max_tokens={max(config.search.max_tokens // 2, 1)}",
    ]
    chosen: list[str] = []
    best = forecast
    for text in candidates:
        if best.peak <= free:
            break
        changed = validate(merge(best.config.model_dump(), parse_override(text)))
        other = Forecast(changed, best.spec, best.shape, best.cuda, stage, best.prompt, best.memory)
        if best.peak - other.peak > WORTH_IT * best.peak:
            chosen.append(f"--set {text}")
            best = other
    if best.peak > free:
        return "use a smaller student, or free memory"
    return f"{' '.join(chosen)} makes it {best.peak / GIB:.1f} GiB"


def check_memory(config: Config, stage: Stage = "train", path: Path | None = None) -> None:
    """Warn on standard error where a training will outgrow its memory. Raises ConfigError where the weights alone do.

    `path` is a folder with the student's weights, where the command has a flag of its own for it.
    """
    if path is not None:
        config = config.model_copy(update={"train": config.train.model_copy(update={"student": str(path)})})
    made = forecast_of(config, stage)
    if made is None or made[0].peak <= made[2]:
        return
    forecast, device, free = made
    weights = sum(part.size for part in forecast.parts() if part.name == "weights")
    if weights > free:
        raise ConfigError(
            f"student {resolve_name(config)} has {weights / GIB:.1f} GiB of weights and {device} {free / GIB:.1f} GiB"
            " free: use a smaller student, or free memory"
        )
    log.warning(
        "warning: this run may need %.1f GiB and %s has %.1f GiB free: %s",
        forecast.peak / GIB,
        device,
        free / GIB,
        advice(forecast, free),
    )


def space(config: Config, folder: Path | None) -> tuple[DiskPlan, Path] | None:
    """What a run writes, and where; None where the student's shape isn't known. `folder` is that of a run to go on with."""
    train, spec = config.train, config.models[resolve_name(config)]
    shape = find_shape(config, spec)
    if shape is None:
        return None
    there = 0 if folder is None else len(sealed(folder))
    forecast = Forecast(config, spec, shape, cuda=False)
    saved = {"auto": forecast.width, "float32": 4, "bfloat16": 2}[train.merge_dtype]
    plan = disk_plan(
        train,
        max(RunSize.of(config).checkpoints_from(0) - there, 0),
        trained=forecast.trained[0] * forecast.trained_width,
        student=forecast.counts.whole * (saved if forecast.lora else forecast.width),
        layers=shape.layers,
        lora=forecast.lora,
    )
    return plan, Path(train.checkpoint_dir) if folder is None else folder


# -- all of it ---------------------------------------------------------------------------------------------------------


def check_start(config: Config, folder: Path | None = None) -> None:
    """Raise ConfigError where `train` can't start: no device for the student, no token for a gated model, no key of the
    teachers, a library that isn't there, no memory for the weights alone; and StorageError where what it writes has no room.
    A run that will outgrow its memory is warned of on standard error. `folder` is that of a run to go on with."""
    check_libraries(config)
    from ..policy.student import check_device

    name = resolve_name(config)
    spec = config.models[name]
    source = start_of(config, spec)
    check_device(name, source, spec)
    if gated(spec) and source == spec.path and cached(spec.path) is None and not token_set():
        mirror = "" if spec.mirror is None else f", or use its mirror with --set models.{name}.path={spec.mirror}"
        raise ConfigError(
            f"student {name} ({spec.path}) is gated and HF_TOKEN is not set: accept its licence at"
            f" https://huggingface.co/{spec.path} and set it{mirror}"
        )
    written = space(config, folder)
    if written is not None:
        check_space(written[1], written[0].total, f"what this run writes ({written[0]})")
    check_memory(config)


def check_libraries(config: Config) -> None:
    """Raise ConfigError for a teachers' key or a library that is missing: all that can be told without torch."""
    from ..teachers.client import open_endpoint
    from .tracking import check_tracker

    tier = config.teacher_tiers[config.teachers.tier] if config.teachers.tier != "none" else None
    if tier is not None and tier.base_url is not None:
        open_endpoint(config.teachers.tier, tier, config.teachers)
    if config.engine.backend == "vllm" and find_spec("vllm") is None:
        raise ConfigError("engine.backend is vllm, which is not installed: install alphazero-llm-trainer[gpu]")
    check_tracker(config.train.track)


def gated(spec: StudentModel) -> bool:
    """True where the hub asks for a licence; a mirror, or a folder, does not."""
    return spec.gated and spec.path != spec.mirror and not Path(spec.path).is_dir()


def token_set() -> bool:
    """True where the hub's token is in the environment, or in its login's file."""
    from huggingface_hub import get_token

    return get_token() is not None
