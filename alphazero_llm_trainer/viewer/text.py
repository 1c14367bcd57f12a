"""A tree as lines of text. Reads the tree's columns and imports nothing of the search."""

from __future__ import annotations

from typing import Any


def draw_tree(tree: Any, chosen: int | None = None, most: int = 6) -> str:
    """One line a step: visits, mean reward, source and text; `*` marks the chosen path.

    Tokens that follow each other without a branch share a line, whose visits are its last one's.
    Children that were never visited are counted; rollouts are shown where they leave the tree.

    Args:
        tree: an object with the tree's columns (`tree.arena.Tree`).
        chosen: the chosen response's last node, or None.
        most: siblings shown; the rest is counted.
    """
    marked = set()
    node = -1 if chosen is None else chosen
    while node > 0:
        marked.add(node)
        node = tree.parent[node]
    rolled: dict[int, list[Any]] = {}
    for rollout in tree.rollouts:
        if rollout.token_ids:  # else it ended in a node that says so itself
            rolled.setdefault(rollout.node, []).append(rollout)
    lines = [f"root  N={tree.N[0]} Q={_mean_text(tree, 0)}"]
    stack: list[tuple[int, str, str]] = []  # (node, indent, a line that is ready where node is -1)

    def push(parent: int, indent: str) -> None:
        visited = [
            child
            for child in tree.children[parent]
            if tree.N[child] or tree.verdict[child] or child in marked
        ]
        # The chosen child is always among those shown.
        ordered = sorted(visited, key=lambda c: (c not in marked, -tree.N[c], c))
        ends = sorted(rolled.get(parent, ()), key=lambda rollout: -rollout.count)
        unvisited = len(tree.children[parent]) - len(visited)
        more = [
            (max(len(ordered) - most, 0), "more"),
            (unvisited, "unvisited"),
            (max(len(ends) - most, 0), "rollouts"),
        ]
        said = ", ".join(f"{count} {what}" for count, what in more if count)
        if said and (visited or ends):
            stack.append((-1, indent, f"  ... {said}"))
        for rollout in ends[:most]:
            stack.append(
                (
                    -1,
                    indent,
                    f"  ~ {_one_line(rollout.text)}  x{rollout.count}  <{rollout.verdict} "
                    f"{rollout.reward:.3f}>",
                )
            )
        stack.extend((child, indent, "") for child in reversed(ordered[:most]))

    push(0, "  ")
    while stack:
        node, indent, ready = stack.pop()
        if node < 0:
            lines.append(indent + ready)
            continue
        star, text = "*" if node in marked else " ", tree.text[node]
        while not (text.strip() and text.rstrip(" \t").endswith("\n")) and node not in rolled:
            onward = [
                child for child in tree.children[node] if tree.N[child] or tree.verdict[child]
            ]
            if len(onward) != 1 or tree.direction[onward[0]] != "none":
                break
            node = onward[0]
            text += tree.text[node]
        source = (
            ""
            if tree.source[node] == "student"
            else f" [{tree.source[node]} {tree.direction[node]}]"
        )
        verdict = (
            ""
            if tree.verdict[node] is None
            else f"  <{tree.verdict[node]} {tree.reward[node]:.3f}>"
        )
        value = "" if tree.V[node] is None else f" V={tree.V[node]:.3f}"
        seen = tree.seen[node]
        answer = "" if seen is None or not seen.text else f" -> {_one_line(seen.text)}"
        lines.append(
            f"{indent}{star} {_one_line(text)}{answer}  N={tree.N[node]} "
            f"Q={_mean_text(tree, node)}{value}{source}{verdict}"
        )
        push(node, indent + "  ")
    return "\n".join(lines)


def _one_line(text: str) -> str:
    """A step of several lines as one: blank lines go, the others are joined by a slash."""
    joined = " / ".join(line.strip() for line in text.split("\n") if line.strip())
    return plain_line(joined or text.strip("\n"))


def plain_line(text: str) -> str:
    """A line without what a terminal would obey: a model, or a server, may write anything."""
    return "".join(letter for letter in text if letter.isprintable() or letter == "\t")


def _mean_text(tree: Any, node: int) -> str:
    return f"{tree.W[node] / tree.N[node]:.3f}" if tree.N[node] else "-"
