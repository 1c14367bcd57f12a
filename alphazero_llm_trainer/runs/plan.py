"""What a training run would do, take, fetch and ask, before anything is loaded: `train
--dry-run`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..config.load import Config, resolve_name, vllm_here, wants_vllm
from ..config.sections import StudentModel
from ..learning.prepared import Prepared
from ..policy.folders import cached
from ..problems.source import open_source
from .memory import GIB
from .start import LESS, fit_of, start_of


def plan(prepared: Prepared, folder: Path | None = None) -> dict[str, Any]:
    """The facts by name; `folder` is that of a run to go on with, and the facts are of the whole
    run.
    """
    config, size = prepared.config, prepared.size
    name, train = resolve_name(config), config.train
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
        "context": context(config),
        "sampled_tokens_at_most": "as many as they take" if train.tokens is None else train.tokens,
        "rounds": f"{size.rounds} of {size.questions_per_round} questions",
        "rows": size.rounds * size.rows_per_round,
        "updates": size.updates,
        "evaluation": f"{len(prepared.test)} test problems before and after, "
        f"{len(prepared.validation)} at each checkpoint",
        "download": download(start_of(config, spec), spec),
        "engine": engine(config),
        "teachers": teachers(config),
        "memory": memory(config),
    }


def context(config: Config) -> str:
    """Tokens that prompt and response have at most, and whether they do for long prompts."""
    tokens, prompt = config.engine.context, open_source(config).prompt_tokens
    said = f"{tokens:,} tokens at most, prompt and response, or what the model can read"
    if prompt >= tokens:
        said += f"; long prompts of this source have some {prompt:,}: raise engine.max_context"
    return said


def memory(config: Config) -> dict[str, Any] | str:
    """What search and updates take in GiB, whether it fits, and what to do where it doesn't."""
    fit = fit_of(config)
    if fit is None:
        return "not known, for this student has no shape"
    made, device, free = fit
    sizes = {**made._asdict(), "peak": made.peak, "free": free}
    return {
        "device": device,
        "verdict": "fits" if made.peak <= free else f"does NOT fit: {LESS}",
        "GiB": {name: round(size / GIB, 3) for name, size in sizes.items()},
    }


def download(source: str, spec: StudentModel) -> str:
    """What would be fetched from the hub for weights from `source`."""
    if source == "package" or Path(source).is_dir():
        return "nothing; the student's weights are here"
    if cached(source) is not None:
        return f"{source} is in the hub's cache"
    known = spec.shape is not None and spec.shape.download_gb
    return f"{source}, {f'about {known:g} GB' if known else 'size not known'}"


def engine(config: Config) -> str:
    """What generates and scores, and what would do it better."""
    backend = config.engine.backend
    if backend == "inprocess" and wants_vllm(config) and not vllm_here():
        return f"{backend}; vLLM is made for this GPU: install alphazero-llm-trainer[gpu]"
    return backend


def teachers(config: Config) -> dict[str, Any] | str:
    """The teachers of a run, their key and their budget."""
    settings = config.teachers
    if config.train.teacher is not None:
        return f"{config.train.teacher} scores what the student draws"
    if settings.tier == "none":
        return "none; the student alone"
    tier = config.teacher_tiers[settings.tier]
    key = tier.key_variable
    is_set = "set" if key and os.environ.get(key) else "not set"
    return {
        "tier": settings.tier,
        "place": tier.base_url or "in this process",
        "models": [teacher.model for teacher in tier.teachers],
        "key": "none needed" if key is None else f"{key} is {is_set}",
        "budget": settings.budget.model_dump(),
    }
