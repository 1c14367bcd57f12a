"""A tree as lines of text. Reads the tree's columns and imports nothing of the search."""

from __future__ import annotations

from typing import Any


def draw_tree(tree: Any, chosen: int | None = None, most: int = 6) -> str:
    """One line a node: visits, mean reward, source and text; `*` marks the chosen path.

    Args:
        tree: an object with the tree's columns (`search.tree.Tree`).
        chosen: the chosen terminal node, or None.
        most: siblings shown; the rest is counted.
    """
    marked = set()
    node = -1 if chosen is None else chosen
    while node > 0:
        marked.add(node)
        node = tree.parent[node]
    lines = [f"root  N={tree.N[0]} Q={_mean(tree, 0)}"]
    stack: list[tuple[int, str]] = []

    def push(parent: int, indent: str) -> None:
        # The chosen child is always among those shown.
        ordered = sorted(tree.children[parent], key=lambda c: (c not in marked, -tree.N[c], c))
        if len(ordered) > most:
            stack.append((-(len(ordered) - most), indent))
        stack.extend((child, indent) for child in reversed(ordered[:most]))

    push(0, "  ")
    while stack:
        node, indent = stack.pop()
        if node < 0:
            lines.append(f"{indent}  ... {-node} more")
            continue
        star = "*" if node in marked else " "
        source = "" if tree.source[node] == "student" else f" [{tree.source[node]} {tree.direction[node]}]"
        verdict = "" if tree.verdict[node] is None else f"  <{tree.verdict[node]} {tree.reward[node]:.3f}>"
        text = tree.text[node].rstrip("\n")
        lines.append(f"{indent}{star} {text}  N={tree.N[node]} Q={_mean(tree, node)}{source}{verdict}")
        push(node, indent + "  ")
    return "\n".join(lines)


def _mean(tree: Any, node: int) -> str:
    return f"{tree.W[node] / tree.N[node]:.3f}" if tree.N[node] else "-"
