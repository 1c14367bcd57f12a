"""`train --dry-run`: what a run would do, take, fetch and ask, before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..config.load import Config, resolve_name
from ..config.sections import StudentModel
from ..training.memory import GIB
from ..training.start import LESS, Fit, Prepared, cached, check_start, fit_of, gated, start_of, token_set
from .base import print_facts


def dry_run(prepared: Prepared, folder: Path | None = None, as_json: bool = False) -> int:
    """Print what a run would do and take; write nothing, load nothing. Ends as the run would where it can't start.

    `folder` is that of a run to go on with: what is printed is of the whole run.
    """
    config, size = prepared.config, prepared.size
    name, train, fit = resolve_name(config), config.train, fit_of(config)
    spec = config.models[name]
    searches, responses = searched(config)
    lora = (train.adapter or spec.adapter) == "lora"
    sampled = train.num_examples * tokens_of(config, responses)
    facts = {
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
        # A limit, which a run stays far below.
        "most_sampled_tokens": sampled if train.tokens is None else min(sampled, train.tokens),
        "download": download(start_of(config, spec), spec),
        "teachers": teachers(config, searches * train.num_examples),
        "memory": "not known, for this student has no shape" if fit is None else memory(fit),
    }
    print_facts(facts, as_json)
    check_start(config)
    if not as_json:
        print("# dry run: nothing was written and nothing loaded; leave out --dry-run to train")
    return 0


def searched(config: Config) -> tuple[int, int]:
    """Expansions and responses of a training tree, at most."""
    train, search = config.train, config.search
    if search.mode == "token":
        # A simulation rolls out once; a beam once for each of its paths.
        return search.simulations, search.simulations * (search.beam if search.rollout == "beam" else 1)
    times = 1 + train.requeue_limit
    if train.groups == "chain":
        return times, times * search.samples
    # A simulation under a verifier is one chain.
    expansions = times * search.simulations
    return expansions, expansions * (1 if train.groups == "verified" else search.samples)


def tokens_of(config: Config, responses: int) -> int:
    """Tokens of a tree of so many responses, at most."""
    tokens, budget = responses * config.search.max_tokens, config.search.budget_tokens
    return tokens if budget is None else min(tokens, budget)


def memory(fit: Fit) -> dict[str, Any]:
    """What search and updates take in GiB, whether it fits, what to do where it doesn't, and the parts."""
    forecast, shown = fit.forecast, lambda size: round(size / GIB, 3)
    return {
        "unit": "GiB",
        "device": fit.device,
        "free": shown(fit.free),
        "peak": shown(forecast.peak),
        "verdict": "fits" if forecast.peak <= fit.free else f"does NOT fit: {LESS}",
        "phases": {phase: shown(size) for phase, size in forecast.phases.items()},
        "parts": {name: shown(max(sizes)) for name, sizes in forecast.parts.items()},
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


def teachers(config: Config, expansions: int) -> dict[str, Any] | str:
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
        "most_calls": expansions * (given.right + given.wrong),
        "prices": {teacher.model: [teacher.prompt_cost, teacher.completion_cost] for teacher in tier.teachers},
        "budget": limits or "no limit",
    }
