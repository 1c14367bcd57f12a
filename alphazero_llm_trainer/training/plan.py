"""What a training run would do, take, fetch and ask, before anything is loaded: `train
--dry-run`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..config.load import Config, resolve_name
from ..config.sections import StudentModel
from .memory import GIB
from .start import LESS, Fit, Prepared, cached, fit_of, gated, start_of, token_set


def plan(prepared: Prepared, folder: Path | None = None) -> dict[str, Any]:
    """The facts by name; `folder` is that of a run to go on with, and the facts are of the whole
    run.
    """
    config, size = prepared.config, prepared.size
    name, train, fit = resolve_name(config), config.train, fit_of(config)
    spec = config.models[name]
    lora = (train.adapter or spec.adapter) == "lora"
    return {
        "goes_on_with": None if folder is None else str(folder),
        "student": {
            "name": name,
            "path": train.student or spec.path,
            "trained": f"LoRA adapters of rank {spec.lora.rank}" if lora else "all weights",
        },
        "method": train.method,
        "source": config.problems.source,
        "questions": train.num_examples,
        "sampled_tokens_at_most": "as many as they take" if train.tokens is None else train.tokens,
        "rounds": f"{size.rounds} of {size.questions_per_round} questions",
        "rows": size.rounds * size.rows_per_round,
        "updates": size.updates,
        "evaluation": f"{len(prepared.test)} test problems before and after, {len(prepared.validation)} at each checkpoint",
        "download": download(start_of(config, spec), spec),
        "teachers": teachers(config),
        "memory": "not known, for this student has no shape" if fit is None else memory(fit),
    }


def memory(fit: Fit) -> dict[str, Any]:
    """What search and updates take in GiB, whether it fits, what to do where it doesn't, and the
    parts.
    """
    forecast = fit.forecast

    def gib(size: float) -> float:
        return round(size / GIB, 3)

    return {
        "unit": "GiB",
        "device": fit.device,
        "free": gib(fit.free),
        "peak": gib(forecast.peak),
        "verdict": "fits" if forecast.peak <= fit.free else f"does NOT fit: {LESS}",
        "phases": {phase: gib(size) for phase, size in forecast.phases.items()},
        "parts": {name: gib(max(sizes)) for name, sizes in forecast.parts.items()},
    }


def download(source: str, spec: StudentModel) -> str:
    """What would be fetched from the hub for weights from `source`, and whether that is allowed."""
    if source == "package" or Path(source).is_dir():
        return "nothing; the student's weights are here"
    if cached(spec.path) is not None:
        return f"{spec.path} is in the hub's cache"
    size = (
        f"about {spec.shape.download_gb:g} GB"
        if spec.shape and spec.shape.download_gb
        else "size not known"
    )
    token = f"HF_TOKEN is {'set' if token_set() else 'not set'}"
    gate = (
        f"gated: accept its licence once; {token}; or its mirror {spec.mirror}"
        if gated(spec)
        else "not gated"
    )
    return f"{spec.path}, {size} ({gate})"


def teachers(config: Config) -> dict[str, Any] | str:
    """The teachers of a run, their key, prices in dollars a million tokens (prompt, completion) and
    their budget.
    """
    settings = config.teachers
    if settings.tier == "none":
        return "none; the student alone"
    tier = config.teacher_tiers[settings.tier]
    key = tier.key_variable
    limits = {
        name: value for name, value in settings.budget.model_dump().items() if value is not None
    }
    return {
        "tier": settings.tier,
        "place": "in this process" if tier.base_url is None else tier.base_url,
        "key": "none needed"
        if key is None
        else f"{key} is {'set' if os.environ.get(key) else 'not set'}",
        "prices": {
            teacher.model: [teacher.prompt_cost, teacher.completion_cost]
            for teacher in tier.teachers
        },
        "budget": limits or "no limit",
    }
