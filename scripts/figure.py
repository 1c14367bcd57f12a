"""The figures of README and the results' pages, light and dark, from JSON files of
benchmarks/results.

    uv run --group docs python scripts/figure.py
    uv run --group docs python scripts/figure.py --run checkpoints/run-001

- first-run: the curve of the run that README's command makes, beside a tree that taught it;
- arms: accuracy on validation problems over sampled tokens, at rates that keep what the start
  knows;
- generations: accuracy by generation, and by tokens of an answer, on pancake sorting.

`--run` writes first_run.json from a run's folder before. A figure whose JSON isn't there is left.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import curve_of, read  # noqa: E402

from alphazero_llm_trainer.api.trees import SavedTree, read_trees  # noqa: E402
from alphazero_llm_trainer.tree.arena import REJECTED  # noqa: E402
from benchmarks import provenance  # noqa: E402

# Text, lines of axes, wrong steps, and the colours of lines (Okabe and Ito), by theme.
LIGHT = ("#24292f", "#8a8f98", "#c04a00", ("#0060a8", "#c04a00", "#00795a", "#8a5a9e", "#6e7781"))
DARK = ("#e6edf3", "#7d8590", "#ff9d57", ("#58a6ff", "#ff9d57", "#3fc99a", "#d2a8ff", "#8b949e"))
LARGEST = 9  # nodes of the tree that is shown
EQUATIONS = r"(\d+( [-+*/] \d+)+ = \d+\n)+#### \d+"  # of its right answer


def style(theme: tuple[Any, ...]) -> dict[str, Any]:
    text, grey, _, colours = theme
    coloured = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(coloured, text),
        "font.size": 11,
        "svg.hashsalt": "figure",  # the same figures make the same file
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": grey,
        "axes.prop_cycle": mpl.cycler(color=colours),
        "legend.frameon": False,
        "savefig.transparent": True,
    }


def lines(axes: Axes, curves: Sequence[tuple[str, Any, Any, Any]]) -> None:
    """Curves with their bands: each one's name, x, its accuracy, and low and high or None."""
    for name, x, middle, band in curves:
        [line] = axes.plot(x, middle, linewidth=2, marker="o", markersize=3, label=name)
        if band is not None:
            axes.fill_between(x, *band, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.yaxis.set_major_formatter("{x:.2f}")
    if len(curves) > 1:
        axes.legend(loc="best")


def start_line(axes: Axes, accuracy: float, grey: str) -> None:
    axes.axhline(accuracy, color=grey, linewidth=1, linestyle=(0, (4, 3)))
    place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
    axes.annotate("start", (1, accuracy), **place)


# -- the first run
# --------------------------------------------------------------------------------------------------


def shown(trees: Sequence[SavedTree]) -> SavedTree:
    """The last small tree with a right answer whose wrong steps stand in two places or more."""

    def wrong(saved: SavedTree) -> int:
        tree = saved.tree
        return len({tree.parent[n] for n in range(len(tree)) if tree.verdict[n] == REJECTED})

    def right(saved: SavedTree) -> bool:
        """Whether a right answer stands behind equations alone."""
        return any(p.right and re.fullmatch(EQUATIONS, p.text.strip()) for p in saved.paths)

    return [t for t in trees if wrong(t) > 1 and right(t) and len(t.tree) <= LARGEST][-1]


def first_run(run: Path) -> dict[str, Any]:
    """What the figure of a run shows: accuracy by sampled tokens, and a tree that taught it."""
    card = read(run / "run.json")
    saved = shown(list(read_trees(run)))
    tree = saved.tree
    chosen = {node for path in saved.paths if path.right for node in path.nodes}
    rows, left = [], [(0, -1, 0)]  # a node, its parent's row, its depth
    while left:
        node, above, depth = left.pop()
        wrong = tree.verdict[node] == REJECTED
        text = tree.text[node].strip()
        rows.append([text, above, depth, wrong, node in chosen])
        below = [(child, len(rows) - 1, depth + 1) for child in tree.children[node]]
        left += reversed(below)
    shares = {name: card[name]["accuracy"]["value"] for name in ("before", "after")}
    facts = {"question": saved.problem.question, "tree": rows, "start": card["validation_before"]}
    return {
        "command": "uv run vf-eval alphazero-llm-trainer -s",
        **shares,
        "curve": curve_of(run),
        **facts,
    }


def draw_first_run(data: dict[str, Any], figure: Figure, theme: tuple[Any, ...]) -> None:
    text, grey, orange, colours = theme
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    points = [[0, data["start"]], *data["curve"]]
    lines(left, [("", [t / 1000 for t, _ in points], [a for _, a in points], None)])
    start_line(left, data["start"], grey)
    left.set_xlabel("sampled tokens, thousands")
    left.set_title("accuracy on validation problems", loc="left", fontsize=11)
    right.set_title(textwrap.fill(data["question"], 52), loc="left", fontsize=10)
    for row, (step, above, depth, wrong, chosen) in enumerate(data["tree"]):
        if above >= 0:
            x = depth - 0.65  # of the line down from the parent
            right.plot([x, x, depth - 0.1], [above + 0.3, row, row], color=grey, linewidth=1)
            colour = orange if wrong else colours[0] if chosen else text
            weight = "bold" if chosen else "normal"
            right.text(depth, row, step, va="center", color=colour, weight=weight)
        if wrong:
            right.text(depth - 0.05, row, "✗", ha="right", va="center", color=orange)
    right.set_xlim(0.2, max(row[2] for row in data["tree"]) + 3)
    right.set_ylim(len(data["tree"]) - 0.4, 0.1)
    right.axis("off")


# -- benchmarks
# --------------------------------------------------------------------------------------------------


def draw_arms(data: dict[str, Any], figure: Figure, theme: tuple[Any, ...]) -> None:
    axes, curves, start = figure.subplots(), [], data["start"]["validation"]
    chosen = {
        arm["arm"]: arm for arm in read(provenance.RESULTS / "step_rejection.json")["summary"]
    }
    for measured in data["summary"]:
        # GRPO's own rate is below the one that all have here, at which it falls far below the
        # start.
        arm = min(measured, chosen[measured["arm"]], key=lambda one: one["rate"])
        points = [{"tokens": 0, "accuracy": [start] * 3}, *arm["curve"]]
        tokens = [point["tokens"] / 1000 for point in points]
        middle, low, high = zip(*(point["accuracy"] for point in points), strict=True)
        curves.append((arm["arm"].partition(",")[0], tokens, middle, (low, high)))
    lines(axes, curves)
    start_line(axes, start, theme[1])
    axes.set_xlabel("sampled tokens, thousands")
    axes.set_title("accuracy on validation problems", loc="left", fontsize=11)


def draw_generations(data: dict[str, Any], figure: Figure, theme: tuple[Any, ...]) -> None:
    left, right = figure.subplots(1, 2)
    curves = []
    for arm in data["arms"]:
        if arm["arm"] not in LEARNT:
            continue
        by_seed = [row["validation"] for row in arm["generations"]]
        middle = [sum(row) / len(row) for row in by_seed]
        band = ([min(row) for row in by_seed], [max(row) for row in by_seed])
        curves.append((arm["arm"], [row["generation"] for row in arm["generations"]], middle, band))
    lines(left, curves)
    left.set_ylim(top=0.9)  # room for the names
    left.legend(loc="upper left")
    left.set_xticks(range(1, len(data["arms"][0]["generations"]) + 1))
    left.set_xlabel("generation")
    left.set_title("greedy accuracy on validation problems", loc="left", fontsize=11)
    ways = {}
    for row in data["answering"]:
        if (row["arm"], row["way"]) in SHOWN:
            ways.setdefault(SHOWN[row["arm"], row["way"]], []).append(row)
    curves = []
    for name, rows in ways.items():
        rows.sort(key=lambda row: row["budget"])
        at = [row["by_seed"][0] for row in rows]
        curves.append((name, [row["budget"] for row in rows], at, None))
    lines(right, curves)
    right.set_ylim(0, 1)
    right.legend(loc="lower right")
    right.set_xlabel("sampled and scored tokens of an answer")
    right.set_title("accuracy on test problems", loc="left", fontsize=11)


LEARNT = ("alphazero", "adaptive RFT", "step rejection", "RFT of eight", "GRPO")
SHOWN = {
    ("alphazero", "puct"): "PUCT, learned value",
    ("alphazero", "puct, permuted"): "PUCT, value permuted",
    ("alphazero", "best-first, constant"): "best-first, no value",
    ("adaptive RFT", "adaptive-best-of-n"): "adaptive best-of-n (RFT)",
    ("adaptive RFT", "step-rejection"): "step rejection (RFT)",
}
FIGURES: dict[str, tuple[str, tuple[float, float], Callable[..., None]]] = {
    "first-run": ("first_run", (8.6, 3.4), draw_first_run),
    "arms": ("arms", (6.4, 4.2), draw_arms),
    "generations": ("generations", (8.6, 3.8), draw_generations),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="the folder of README's run")
    args = parser.parse_args()
    if args.run:
        provenance.write(provenance.RESULTS / "first_run.json", first_run(args.run))
    for name, (stem, size, draw) in FIGURES.items():
        if (provenance.RESULTS / f"{stem}.json").exists():
            for theme, ending in ((LIGHT, ""), (DARK, "-dark")):
                with mpl.rc_context(style(theme)):
                    figure = plt.figure(figsize=size, layout="constrained")
                    draw(read(provenance.RESULTS / f"{stem}.json"), figure, theme)
                    out = ROOT / "docs" / f"{name}{ending}.svg"
                    figure.savefig(out, metadata={"Date": None})
                    plt.close(figure)


if __name__ == "__main__":
    main()
