"""README's figure: held-out accuracy over sampled tokens, from the JSON of
benchmarks/improvement.py.

    uv run --group docs python scripts/figure.py

The tree is blue and everything that it is compared with is grey. Each arm's name stands at the end
of its line, and around a line lies its band. The line of an arm that samples nothing is dashed:
there the tokens stand for its share of the updates.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "results" / "improvement.json"
BLUE, GREY, TEXT = "#1558b0", "#8a8f98", "#3c4149"
STYLE = {
    "font.size": 11,
    "svg.hashsalt": "arms",  # the same figures make the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": TEXT,
    "text.color": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}
ROOM = 0.052  # between two names, as a share of the axis


def apart(heights: Sequence[float], room: float) -> list[float]:
    """Heights near `heights`, in their order, with at least `room` between them.

    Names that would overlap share a block around the middle of their lines' ends.
    """
    blocks: list[tuple[float, list[int]]] = []  # the middle of a block, its names
    for name in sorted(range(len(heights)), key=lambda name: heights[name]):
        middle, names = heights[name], [name]
        while blocks and middle - blocks[-1][0] < room * (len(names) + len(blocks[-1][1])) / 2:
            names = blocks.pop()[1] + names
            middle = sum(heights[each] for each in names) / len(names)
        blocks.append((middle, names))
    placed = dict.fromkeys(range(len(heights)), 0.0)
    for middle, names in blocks:
        for at, name in enumerate(names):
            placed[name] = middle + room * (at - (len(names) - 1) / 2)
    return list(placed.values())


@mpl.rc_context(STYLE)
def draw(data: dict[str, Any], out: Path) -> None:
    """The figure as a file."""
    figure, axes = plt.subplots(figsize=(5.2, 4.4), layout="constrained")
    arms = data["summary"]
    most = max(point["tokens"] for arm in arms for point in arm["curve"]) / 1000
    for arm in arms:
        tree = arm["arm"] == "tree"
        colour, width, order = (BLUE, 2.6, 3) if tree else (GREY, 1.2, 2)
        tokens = [point["tokens"] / 1000 for point in arm["curve"]]
        middle, low, high = zip(*(point["accuracy"] for point in arm["curve"]), strict=True)
        band = {"alpha": 0.2 if tree else 0.07, "linewidth": 0, "zorder": order - 1}
        axes.fill_between(tokens, low, high, color=colour, **band)
        dashes = (0, ()) if arm["tokens"] else (0, (4, 3))
        axes.plot(tokens, middle, color=colour, linewidth=width, linestyle=dashes, zorder=order)
    bottom, top = axes.get_ylim()
    ends = [arm["curve"][-1]["accuracy"][0] for arm in arms]
    for arm, end, height in zip(arms, ends, apart(ends, ROOM * (top - bottom)), strict=True):
        tree = arm["arm"] == "tree"
        last = arm["curve"][-1]["tokens"] / 1000
        line = {"arrowstyle": "-", "color": BLUE if tree else GREY, "linewidth": 0.7, "shrinkB": 0}
        axes.annotate(
            arm["arm"],
            xy=(last, end),
            xytext=(most * 1.06, height),
            va="center",
            color=BLUE if tree else TEXT,
            weight="bold" if tree else "normal",
            annotation_clip=False,
            arrowprops=line,
        )
    axes.set_xlim(0, most)
    axes.set_xlabel("sampled tokens, thousands")
    axes.set_title("accuracy on held-out problems", loc="left", fontsize=11)
    axes.yaxis.set_major_formatter("{x:.2f}")
    figure.savefig(out, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="default: %(default)s")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "arms.svg", help="default: %(default)s"
    )
    args = parser.parse_args()
    draw(json.loads(args.data.read_text(encoding="utf-8")), args.out)


if __name__ == "__main__":
    main()
