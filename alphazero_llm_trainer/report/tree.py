"""A small search tree as a chart: one line a step, the most visited ones, wider branches for more visits."""

from __future__ import annotations

import heapq
import textwrap

from ..mcts.tree import ROOT, Rollout, Tree
from .charts import LETTER, WIDTH, Chart, shorten, target, text

LINE, INDENT = 22, 13
QUESTION_LINES = 3
WORST, BEST = (213, 94, 0), (0, 114, 178)  # colours of the least and the greatest value shown

Place = tuple[int, ...]  # the number of each branch from the root down
Step = tuple[str, float, int]  # text, mean reward, visits


def most_visited(tree: Tree, most: int) -> dict[Place, Step]:
    """The steps that were visited most, in the tree's order. Tokens that follow each other without a branch are one."""
    rolled: dict[int, list[Rollout]] = {}
    for rollout in tree.rollouts:
        rolled.setdefault(rollout.node, []).append(rollout)
    waiting: list[tuple[int, Place, int | Rollout]] = [(-tree.N[ROOT], (), ROOT)]
    found: dict[Place, Step] = {}
    while waiting and len(found) < most:
        _, place, node = heapq.heappop(waiting)
        if isinstance(node, Rollout):
            found[place] = f"{mark(node.grade)} {node.text}", node.reward, node.count
            continue
        words = tree.text[node]
        while len(onward := visited(tree, node)) == 1 and words and not words.endswith("\n") and node not in rolled:
            node = onward[0]
            words += tree.text[node]
        ended = "" if tree.verdict[node] is None else mark(tree.grade(node))
        found[place] = f"{ended} {words}", tree.q(node), tree.N[node]
        for at, inner in enumerate([*visited(tree, node), *rolled.get(node, ())]):
            visits = inner.count if isinstance(inner, Rollout) else tree.N[inner]
            heapq.heappush(waiting, (-visits, (*place, at), inner))
    return dict(sorted(found.items()))


def visited(tree: Tree, node: int) -> list[int]:
    return [child for child in tree.children[node] if tree.N[child]]


def mark(grade: float | None) -> str:
    """How a response ended: right, wrong or not graded."""
    return "■" if grade is None else "✓" if grade == 1.0 else "✗"


def outline(tree: Tree, title: str, question: str, most: int = 14) -> Chart:
    """The `most` visited steps of a tree, a line each with its mean reward and visits; an end is marked."""
    steps = most_visited(tree, most)
    values = [value for _, value, _ in steps.values()]
    low, high = (min(values), max(values)) if min(values) < max(values) else (0.0, 1.0)
    asked = textwrap.wrap(question, int(WIDTH / LETTER), max_lines=QUESTION_LINES, placeholder="…")
    top = 22.0 + 15 * len(asked)
    bottom = top + LINE * len(steps)
    ys = {place: top + LINE * (at + 0.5) for at, place in enumerate(steps)}
    marks = [text(0, 30 + 15 * at, line, "soft") for at, line in enumerate(asked)]
    branches, targets = [], []
    for place, (words, value, visits) in steps.items():
        x, y = 6 + INDENT * len(place), ys[place]
        if place:
            width = 1 + 4 * (visits / tree.N[ROOT]) ** 0.5
            branches.append(f'<path stroke-width="{width:.1f}" d="M{x - INDENT} {ys[place[:-1]]:.1f} V{y:.1f} H{x}"/>')
        mix = zip(WORST, BEST, strict=True)
        shade = "".join(f"{round(worst + (best - worst) * (value - low) / (high - low)):02x}" for worst, best in mix)
        figures, said = f"{value:.2f} · {visits:,}", " ".join(words.split()) if place else "question"
        marks += [
            f'<circle cx="{x}" cy="{y:.1f}" r="4.5" fill="#{shade}"/>',
            text(x + 9, y + 4, shorten(said, WIDTH - x - 9 - (len(figures) + 2) * LETTER)),
            text(WIDTH, y + 4, figures, "soft", "end"),
        ]
        lines = [said if place else question, f"mean reward {value:.3f}, visits {visits:,}"]
        targets.append(target(0, y - LINE / 2, WIDTH, LINE, lines, bottom))
    return Chart(title, bottom + 4, [f'<g class="branches">{"".join(branches)}</g>', *marks, *targets])
