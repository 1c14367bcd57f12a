"""The picture of an evaluation: accuracy over the tokens that were really spent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARKERS = "osD^vP*X<>"


def draw_accuracy_over_tokens(path: Path, results: Mapping[str, Any]) -> None:
    """One panel a benchmark, one line a method over its budgets; bars are Wilson 95% intervals."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(results["benchmarks"])
    methods = list(dict.fromkeys(row["method"] for row in results["rows"]))
    colours = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]
    columns = min(len(names), 2)
    lines = -(-len(names) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(6.4 * columns + 2.2, 4.6 * lines), squeeze=False, constrained_layout=True
    )
    for axis in axes.flat[len(names) :]:
        axis.axis("off")
    for axis, name in zip(axes.flat, names, strict=False):
        rows = [row for row in results["rows"] if row["benchmark"] == name]
        for i, method in enumerate(methods):
            points = sorted(
                (row["sampled_tokens"] + row["scored_tokens"], *row["accuracy"])
                for row in rows
                if row["method"] == method
            )
            if points:
                tokens, accuracy, low, high = zip(*points, strict=True)
                errors = [
                    [max(0.0, a - b) for a, b in zip(accuracy, low, strict=True)],
                    [max(0.0, b - a) for a, b in zip(accuracy, high, strict=True)],
                ]
                axis.errorbar(
                    tokens, accuracy, yerr=errors, label=method, color=colours[i % len(colours)],
                    marker=MARKERS[i % len(MARKERS)], markersize=6, linewidth=1.4, elinewidth=0.7, capsize=2, alpha=0.9,
                )  # fmt: skip
        budgets = sorted({row["budget"] for row in rows})
        for budget in budgets:
            axis.axvline(budget, color="black", linewidth=0.7, linestyle=":")
        problems = results["benchmarks"][name]["problems"]
        axis.set(
            title=f"{name}, {problems:,} problems; dotted: the budgets {', '.join(f'{b:,}' for b in budgets)}",
            xlabel="sampled + scored tokens a problem",
            ylabel="accuracy",
        )
        axis.grid(alpha=0.25)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=9)
    figure.suptitle(f"{results['student']}, verifier {results['verifier']}, seed {results['seed']}")
    figure.savefig(path, dpi=110)
    plt.close(figure)
