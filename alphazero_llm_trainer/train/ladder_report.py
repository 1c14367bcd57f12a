"""What a ladder shows: its rungs with intervals, the methods beside MCTS at equal tokens, and what was not reached."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..eval.metrics import Interval, paired_bootstrap
from ..eval.results import grid
from .ladder import RUNGS, TIMES, Seed, read

BELOW = ("greedy", "majority", "best-of-n", "adaptive-best-of-n", "early-abort")  # what MCTS has to beat


def mean_over_seeds(outcomes: Sequence[str]) -> list[float]:
    """Each problem's mean outcome over the seeds `[n]`."""
    return [sum(map(float, one)) / len(one) for one in zip(*outcomes, strict=True)]


def over_zero(values: Sequence[float]) -> Interval:
    """The mean with its 95% bootstrap interval over problems."""
    return paired_bootstrap(values, [0.0] * len(values))


def row_of(results: dict[str, Any], method: str, budget: int) -> dict[str, Any]:
    """The row of one method and budget of an evaluation."""
    return next(row for row in results["rows"] if row["method"] == method and row["budget"] == budget)


def collect(seeds: Sequence[Seed], command: str, seconds: float) -> dict[str, Any]:
    """Everything that the tables and the plot are made of; outcomes are kept as 0/1 strings, a character a problem."""
    ladder = seeds[0].config.ladder
    main, most = ladder.verifiers[0], max(ladder.budgets)
    names = ("base", "sft", "ppo", main, main)
    rungs: list[dict[str, Any]] = []
    for rung, (title, name) in enumerate(zip(RUNGS, names, strict=True)):
        method, budget = ("mcts", ladder.budget_tokens) if rung == len(RUNGS) - 1 else ("greedy", most)
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
    accuracy = over_zero(mean_over_seeds(outcomes))
    return {
        "name": title,
        "accuracy": [accuracy.value, accuracy.low, accuracy.high],
        "by_seed": [one.count("1") / len(one) for one in outcomes],
        "tokens": sum(row["sampled_tokens"] + row["scored_tokens"] for row in rows) / len(rows),
        "sampled_tokens": sum(row["sampled_tokens"] for row in rows) / len(rows),
        "outcomes": outcomes,
    }


def gain_of(one: dict[str, Any], other: dict[str, Any]) -> list[float]:
    """Mean difference over seeds, paired by problem, with its 95% interval."""
    gain = paired_bootstrap(mean_over_seeds(one["outcomes"]), mean_over_seeds(other["outcomes"]))
    return [gain.value, gain.low, gain.high]


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


# -- tables ------------------------------------------------------------------------------------------------------------


def signed(gain: Sequence[float]) -> str:
    return f"{gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]"


def markdown(ladder: dict[str, Any]) -> str:
    """The ladder, the methods at equal tokens and what was not reached, as Markdown."""
    seeds = ", ".join(map(str, ladder["seeds"]))
    lines = [
        f"`{ladder['command']}`: seeds {seeds}, {ladder['problems']:,} held-out problems, {ladder['seconds'] / 60:.0f} min.",
        "Intervals are 95%, over problems (each with its mean over the seeds).",
        "",
    ]
    table = [["rung", "accuracy [95%]", "by seed", "over the rung below", "tokens a problem", "training tokens"]]
    for rung in ladder["rungs"]:
        value, low, high = rung["accuracy"]
        table.append(
            [
                rung["name"],
                f"{value:.3f} [{low:.3f}, {high:.3f}]",
                ", ".join(f"{one:.3f}" for one in rung["by_seed"]),
                signed(rung["gain"]) if "gain" in rung else "",
                f"{rung['tokens']:.0f}",
                "" if rung["training_tokens"] is None else f"{rung['training_tokens']:,}",
            ]
        )
    lines += [*grid(table), ""]
    table = [["verifier", "budget", "method", "accuracy [95%]", "sampled", "scored", "mcts over it"]]
    for row in ladder["methods"]:
        value, low, high = row["accuracy"]
        table.append(
            [
                row["verifier"],
                str(row["budget"]),
                row["name"],
                f"{value:.3f} [{low:.3f}, {high:.3f}]",
                f"{row['sampled_tokens']:.0f}",
                f"{row['tokens'] - row['sampled_tokens']:.0f}",
                signed(row["mcts_gain"]) if "mcts_gain" in row else "",
            ]
        )
    lines += [*grid(table), "", *verdicts(ladder)]
    return "\n".join(lines) + "\n"


def verdicts(ladder: dict[str, Any]) -> list[str]:
    """A sentence for every aim: reached or not."""
    said = []
    for below, rung in zip(ladder["rungs"], ladder["rungs"][1:], strict=False):
        word = "reached" if rung["gain"][1] > 0 else "NOT reached"
        said.append(f"- {word}: {rung['name']} above {below['name']}: {signed(rung['gain'])}")
    for row in ladder["methods"]:
        if row["name"] in BELOW:
            word = "reached" if row["mcts_gain"][1] > 0 else "NOT reached"
            said.append(
                f"- {word}: mcts above {row['name']} with {row['verifier']} at {row['budget']} tokens:"
                f" {signed(row['mcts_gain'])}"
            )
    return said


def draw(path: Path, ladder: dict[str, Any]) -> None:
    """The ladder's bars, and accuracy over tokens of all methods with the main verifier."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (bars, curve) = plt.subplots(1, 2, figsize=(14.5, 5), constrained_layout=True)
    rungs = ladder["rungs"]
    for at, rung in enumerate(rungs):
        found = Interval(*rung["accuracy"])
        value, high = found.value, found.high
        bars.bar(at, value, yerr=[[value - found.low], [high - value]], capsize=5, color=f"C{at}", alpha=0.85)
        bars.text(at, max(high, *rung["by_seed"]) + 0.02, f"{value:.3f}", ha="center", fontsize=9)
        bars.scatter([at] * len(rung["by_seed"]), rung["by_seed"], color="black", s=12, zorder=3)
    bars.set_xticks(range(len(rungs)), [rung["name"].replace(" +MCTS", "\n+MCTS") for rung in rungs], fontsize=9)
    bars.set(ylim=(0, 1.05), ylabel="accuracy", title=f"{ladder['problems']:,} held-out problems; dots are seeds")
    main = ladder["methods"][0]["verifier"]
    rows = [row for row in ladder["methods"] if row["verifier"] == main]
    for at, name in enumerate(dict.fromkeys(row["name"] for row in rows)):
        points = sorted((row["tokens"], Interval(*row["accuracy"])) for row in rows if row["name"] == name)
        tokens, values = [x for x, _ in points], [y.value for _, y in points]
        error = [[y.value - y.low for _, y in points], [y.high - y.value for _, y in points]]
        style = {"linewidth": 2.5, "zorder": 4} if name == "mcts" else {"linewidth": 1.2}
        curve.errorbar(tokens, values, yerr=error, marker="o", capsize=2, color=f"C{at}", label=name, **style)
    curve.set(xlabel="tokens a problem, sampled and scored", ylabel="accuracy", title=f"Verifier: {main}")
    curve.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)
    plt.close(figure)
