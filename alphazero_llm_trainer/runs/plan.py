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
from ..policy.folders import cached_config, stored_bytes
from ..problems.load import opening
from ..problems.registry import open_source
from ..types import JsonObject
from .start import start_of


def plan_run(prepared: Prepared, folder: Path | None = None) -> JsonObject:
    """The facts by name; `folder` is that of a run to go on with, and the facts are of the whole
    run.
    """
    config, size = prepared.config, prepared.size
    train, spec = config.train, config.models[resolve_name(config)]
    return {
        "goes_on_with": None if folder is None else str(folder),
        "student": student_facts(config),
        "method": train.method,
        "source": config.problems.source,
        "questions": train.num_examples,
        "context": describe_context(config),
        "sampled_tokens_at_most": "as many as they take" if train.tokens is None else train.tokens,
        "rounds": size.planned,
        "rows": size.rounds * size.rows_per_round,
        "updates": size.updates,
        "evaluation": f"{len(prepared.test)} test problems before and after, "
        f"{len(prepared.validation)} at each checkpoint",
        "download": describe_download(start_of(config, spec), spec),
        "engine": describe_engine(config),
        "teachers": describe_teachers(config),
    }


def describe_context(config: Config) -> str:
    """Tokens that prompt and response have at most, and whether they do for long prompts."""
    tokens, prompt = config.engine.context, open_source(config).prompt_tokens
    said = f"{tokens:,} tokens at most, prompt and response, or what the model can read"
    if prompt >= tokens:
        said += f"; long prompts of this source have some {prompt:,}: raise engine.max_context"
    return said


def describe_download(source: str, spec: StudentModel) -> str:
    """What would be fetched from the hub for weights from `source`."""
    if source == "package" or Path(source).is_dir():
        return "nothing; the student's weights are here"
    if cached_config(source) is not None:
        return f"{source} is in the hub's cache"
    size = "size not known" if spec.download_gb is None else f"about {spec.download_gb:g} GB"
    return f"{source}, {size}"


def describe_engine(config: Config) -> str:
    """What generates and scores, and what would do it better."""
    backend = config.engine.backend
    if backend == "inprocess" and wants_vllm(config) and not vllm_here():
        return f"{backend}; vLLM is made for this GPU: install alphazero-llm-trainer[gpu]"
    return backend


def describe_teachers(config: Config) -> JsonObject | str:
    """The teachers of a run, their key and their budget."""
    settings = config.teachers
    if config.train.teacher is not None:
        return f"{config.train.teacher} scores what the student draws"
    if settings.tier == "none":
        return "none; the student alone"
    tier = tier_facts(config.teacher_tiers[settings.tier])
    return {"tier": settings.tier, **tier, "budget": settings.budget.model_dump()}


def student_facts(config: Config) -> JsonObject:
    """The student's name, where its weights come from, the bytes of their files (0 where they
    aren't here), in what numbers they are, which are trained, and what it is told first.
    """
    name = resolve_name(config)
    spec = config.models[name]
    return {
        "name": name,
        "path": config.train.student or spec.path,
        "bytes": stored_bytes(start_of(config, spec)),
        "numbers": spec.dtype,
        "quantization": spec.quantization,
        "trained": config.train.adapter or spec.adapter,
        "system prompt": opening(config).system_prompt,
    }


def tier_facts(spec: Any) -> JsonObject:
    """Where a tier of teachers answers, which variable holds its key, and whether that is set."""
    return {
        "place": "in this process" if spec.base_url is None else spec.base_url,
        "key": spec.key_variable,
        "set": spec.key_variable is not None and bool(os.environ.get(spec.key_variable)),
        "models": [teacher.model for teacher in spec.teachers],
    }
