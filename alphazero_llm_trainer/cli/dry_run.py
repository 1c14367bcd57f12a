"""`train --dry-run`: what a run would do, take, fetch and ask, before anything is loaded."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config.load import Config, resolve_name
from ..config.sections import StudentModel
from ..files import free_bytes
from ..training.check import RunData
from ..training.disk import DiskPlan
from ..training.memory import GIB, PHASES, Forecast
from ..training.size import RunSize
from ..training.start import advice, cached, check_start, forecast_of, gated, space, start_of, token_set
from .base import print_json


def dry_run(config: Config, data: RunData, folder: Path | None = None, as_json: bool = False) -> int:
    """Print what a run on `data` would do and take; write nothing, load nothing. Ends as the run would where it can't start.

    `folder` is that of a run to go on with.
    """
    held_out = {"eval_size": len(data.test), "validation_size": len(data.validation)}
    config = config.model_copy(update={"train": config.train.model_copy(update=held_out)})
    name = resolve_name(config)
    spec, size, train = config.models[name], RunSize.of(config), config.train
    fetched = download(start_of(config, spec), spec)
    made, written = forecast_of(config), space(config, folder)
    if as_json:
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
            "download": fetched,
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
    asks = f"; `train` answers {train.preflight} questions first and says what to expect" if train.preflight else ""
    print(
        f"run: {train.num_examples:,} {config.problems.source} questions in {size.rounds} rounds of"
        f" {size.questions_per_round}, {train.method}, seed {config.seed}\n"
        f"  {size.rows_per_round} rows and {size.updates_per_round} updates a round:"
        f" {size.rounds * size.rows_per_round:,} rows, {size.updates:,} updates\n"
        f"  evaluation: {len(data.test):,} test problems before and after, {len(data.validation):,} validation problems at"
        f" each checkpoint\n"
        f"  limits, which a run stays far below: {size.sampled_tokens:,} tokens sampled in search ({size.responses}"
        f" responses a question of {config.search.max_tokens} tokens), {size.evaluated_tokens:,} in evaluation{asks}"
    )
    print(f"download: {fetched}")
    for line in teachers(config, size):
        print(line)
    print("memory: not known, for this student has no shape" if made is None else memory_table(*made))
    if written is not None:
        plan, place = written
        print(f"disk: {plan}; trees and figures on top; {place} has {free_bytes(place) / 1e6:,.0f} MB free")
    check_start(config, folder)
    print("dry run: nothing was written and nothing loaded; leave out --dry-run to train")
    return 0


def memory_table(forecast: Forecast, device: str, free: int) -> str:
    """Parts and sizes, largest first; what search and updates come to, whether it fits, and what to do where it doesn't."""
    parts = sorted(forecast.parts(), key=lambda part: -part.size)
    width = max(len(part.words) for part in parts)
    lines = [f"memory on {device}, in GiB:"]
    for part in parts:
        when = "" if part.phases == PHASES else f" in {part.phases[0]}"
        lines.append(f"  {part.name:16} {part.words:{width}} {part.size / GIB:9.3f}{when}")
    phases = ", ".join(f"{phase} {forecast.at(phase) / GIB:.2f}" for phase in PHASES)
    fits = forecast.peak <= free
    verdict = "fits" if fits else f"does NOT fit: {advice(forecast, free)}"
    lines.append(f"  peak {forecast.peak / GIB:.2f} of {free / GIB:.2f} free ({phases}): {verdict}")
    return "\n".join(lines)


def memory_facts(forecast: Forecast, device: str, free: int) -> dict[str, Any]:
    """The memory table as `--json` prints it, in bytes."""
    return {
        "device": device,
        "available": free,
        "peak": forecast.peak,
        "fits": forecast.peak <= free,
        "phases": {phase: forecast.at(phase) for phase in PHASES},
        "parts": [asdict(part) for part in forecast.parts()],
    }


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
    limits = {key: value for key, value in given.budget.model_dump().items() if value is not None}
    return [*lines, "  budget: " + (", ".join(f"{value:g} {key}" for key, value in limits.items()) or "no limit")]
