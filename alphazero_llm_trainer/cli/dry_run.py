"""`train --dry-run`: what a run would do, take, fetch and ask, before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..config.load import Config, resolve_name
from ..config.sections import StudentModel
from ..files import free_bytes
from ..training.memory import GIB, PHASES, Forecast
from ..training.size import RunSize
from ..training.start import RunData, advice, cached, check_start, forecast_of, gated, space, start_of, token_set
from .base import print_facts


def dry_run(config: Config, data: RunData, folder: Path | None = None, as_json: bool = False) -> int:
    """Print what a run on `data` would do and take; write nothing, load nothing. Ends as the run would where it can't start.

    `folder` is that of a run to go on with: what is told is of the whole run.
    """
    held_out = {"eval_size": len(data.test), "validation_size": len(data.validation)}
    config = config.model_copy(update={"train": config.train.model_copy(update=held_out)})
    name = resolve_name(config)
    spec, size, train = config.models[name], RunSize.of(config), config.train
    made, written = forecast_of(config), space(config, folder)
    facts = {
        "goes_on_with": None if folder is None else str(folder),
        "student": {"name": name, "path": train.student or spec.path, "trained": size.adapter(spec)},
        "method": train.method,
        "source": config.problems.source,
        "questions": train.num_examples,
        "rounds": f"{size.rounds} of {size.questions_per_round} questions",
        "rows": size.rounds * size.rows_per_round,
        "updates": size.updates,
        "evaluation": f"{len(data.test)} test problems before and after, {len(data.validation)} at each checkpoint",
        # Limits, which a run stays far below; `train.preflight` measures what to expect.
        "most_sampled_tokens": size.sampled_tokens,
        "most_evaluated_tokens": size.evaluated_tokens,
        "download": download(start_of(config, spec), spec),
        "teachers": teachers(config, size),
        "memory": "not known, for this student has no shape" if made is None else memory(*made),
    }
    if written is not None:
        plan, place = written
        facts["disk"] = f"{plan}; trees and figures on top; {place} has {free_bytes(place) / 1e6:,.0f} MB free"
    print_facts(facts, as_json)
    check_start(config, folder)
    if not as_json:
        print("# dry run: nothing was written and nothing loaded; leave out --dry-run to train")
    return 0


def memory(forecast: Forecast, device: str, free: int) -> dict[str, Any]:
    """What search and updates take in GiB, whether it fits, what to do where it doesn't, and the parts, largest first."""
    parts = sorted(forecast.parts(), key=lambda part: -part.size)
    return {
        "device": device,
        "free": round(free / GIB, 3),
        "peak": round(forecast.peak / GIB, 3),
        "verdict": "fits" if forecast.peak <= free else f"does NOT fit: {advice(forecast, free)}",
        "phases": {phase: round(forecast.at(phase) / GIB, 3) for phase in PHASES},
        "parts": {f"{part.name}: {part.words}": round(part.size / GIB, 3) for part in parts},
    }


def download(source: str, spec: StudentModel) -> str:
    """What would be fetched from the hub for weights from `source`, and whether that is allowed."""
    if source == "package" or Path(source).is_dir():
        return "nothing; the student's weights are here"
    if cached(spec.path) is not None:
        return f"{spec.path} is in the hub's cache"
    known = spec.shape is not None and spec.shape.download_gb
    size = f"about {spec.shape.download_gb:g} GB" if spec.shape is not None and known else "size not known"
    token = f"HF_TOKEN is {'set' if token_set() else 'not set'}"
    gate = f"gated: accept its licence once; {token}; or its mirror {spec.mirror}" if gated(spec) else "not gated"
    return f"{spec.path}, {size} ({gate})"


def teachers(config: Config, size: RunSize) -> dict[str, Any] | str:
    """The teachers of a run, their keys, prices in dollars a million tokens (prompt, completion) and their budget."""
    given = config.teachers
    if given.tier == "none":
        return "none; the student alone"
    tier = config.teacher_tiers[given.tier]
    key = tier.key_variable
    limits = {name: value for name, value in given.budget.model_dump().items() if value is not None}
    return {
        "tier": given.tier,
        "place": "in this process" if tier.base_url is None else tier.base_url,
        "key": "none needed" if key is None else f"{key} is {'set' if os.environ.get(key) else 'not set'}",
        "most_calls": size.teacher_calls,
        "prices": {teacher.model: [teacher.prompt_cost, teacher.completion_cost] for teacher in tier.teachers},
        "budget": limits or "no limit",
    }
