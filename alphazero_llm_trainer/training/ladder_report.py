"""What a ladder found: its rungs with intervals, and the methods beside MCTS at equal tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ..eval.metrics import mean_interval, paired_bootstrap
from ..eval.results import triple
from .ladder import TIMES, Seed, read, rung_names


def mean_over_seeds(outcomes: Sequence[str]) -> list[float]:
    """Each problem's mean outcome over the seeds `[n]`."""
    return [sum(map(float, one)) / len(one) for one in zip(*outcomes, strict=True)]


def row_of(results: dict[str, Any], method: str, budget: int) -> dict[str, Any]:
    """The row of one method and budget of an evaluation."""
    return next(row for row in results["rows"] if row["method"] == method and row["budget"] == budget)


def collect(seeds: Sequence[Seed], command: str, seconds: float) -> dict[str, Any]:
    """Everything that tables and charts are made of; outcomes are kept as 0/1 strings, a character a problem."""
    ladder = seeds[0].config.ladder
    main, most = ladder.verifiers[0], max(ladder.budgets)
    names, titles = ("base", "sft", "ppo", main, main), rung_names(seeds[0].config)
    rungs: list[dict[str, Any]] = []
    for rung, (title, name) in enumerate(zip(titles, names, strict=True)):
        method, budget = ("mcts", ladder.budget_tokens) if rung == len(titles) - 1 else ("greedy", most)
        rows = [row_of(read(seed.evaluation(name) / "results.json"), method, budget) for seed in seeds]
        rungs.append(entry(title, rows) | {"training_tokens": training_tokens(seeds, rung)})
    for below, rung_entry in itertools.pairwise(rungs):
        rung_entry["gain"] = gain_of(rung_entry, below)
    tables = [compared(seeds, verifier, budget) for verifier in ladder.verifiers for budget in ladder.budgets]
    return {
        "command": command,
        "seeds": [seed.seed for seed in seeds],
        "problems": ladder.num,
        "seconds": round(seconds, 1),
        "stage_seconds": {seed.seed: read(seed.path / TIMES) for seed in seeds},
        "rungs": rungs,
        "methods": [row for table in tables for row in table],
        "prm": {seed.seed: read(seed.prm / "prm.json").get("test", {}) for seed in seeds},
    }


def entry(title: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A rung's or method's figures over seeds; intervals are over problems, each with its mean over the seeds."""
    outcomes = [row["outcomes"] for row in rows]
    return {
        "name": title,
        "accuracy": triple(mean_interval(mean_over_seeds(outcomes))),
        "by_seed": [one.count("1") / len(one) for one in outcomes],
        "tokens": sum(row["sampled_tokens"] + row["scored_tokens"] for row in rows) / len(rows),
        "sampled_tokens": sum(row["sampled_tokens"] for row in rows) / len(rows),
        "outcomes": outcomes,
    }


def gain_of(one: dict[str, Any], other: dict[str, Any]) -> list[float]:
    """Mean difference over seeds, paired by problem, with its 95% interval."""
    return triple(paired_bootstrap(mean_over_seeds(one["outcomes"]), mean_over_seeds(other["outcomes"])))


def training_tokens(seeds: Sequence[Seed], rung: int) -> int | None:
    """Tokens that the rung's own training sampled, the PRM's trees included; None for supervised training."""
    if rung < 2:
        return None
    stages = ("ppo",) if rung == 2 else ("prm", "grpo")
    return round(sum(seed.tokens(stage) for seed in seeds for stage in stages) / len(seeds))


def compared(seeds: Sequence[Seed], verifier: str, budget: int) -> list[dict[str, Any]]:
    """All methods with one verifier and budget, each with MCTS's gain over it."""
    results = [read(seed.evaluation(verifier) / "results.json") for seed in seeds]
    methods = seeds[0].config.ladder.methods
    found = {method: entry(method, [row_of(one, method, budget) for one in results]) for method in methods}
    for method, row in found.items():
        row |= {"verifier": verifier, "budget": budget}
        if method != "mcts":
            row["mcts_gain"] = gain_of(found["mcts"], row)
    return list(found.values())
