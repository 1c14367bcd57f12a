"""What search counts in a tree, and what a selector reads of it: visits and values of nodes, and
the ways to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .columns import SavedColumns


class Statistics(SavedColumns):
    """Visits and values of nodes. See `arena.Tree`, which has the fields and grows them."""

    low: float
    span: float
    best: list[float] | None

    def __len__(self) -> int:
        return len(self.parent)

    def checked(self, nodes: Iterable[int]) -> bool:
        """Whether a verifier checked one of these steps: such a step has a score."""
        return any(self.prm[node] is not None for node in nodes)

    def sure(self, nodes: Iterable[int]) -> bool:
        """Whether a verifier checked all of these steps that state something, and one of them
        does.
        """
        nodes = [*nodes]
        return self.checked(nodes) and not any(self.unread[node] for node in nodes)

    def backup(self, node: int, reward: float, above: int = -1) -> None:
        """Add one visit of `reward` to `node` and all its ancestors up to `above` (left out; -1: to
        the root).
        """
        self.backups.append((node, reward, above))
        # One visit along the path: N += 1, W += gamma^d r at d steps above, so that Q = W/N is the
        # mean discounted reward through a node.
        for at, worth in self.upwards(node, reward, above):
            self.N[at] += 1
            self.W[at] += worth
            if self.best is not None:
                self.best[at] = max(self.best[at], worth)

    def upwards(self, node: int, reward: float, above: int) -> Iterator[tuple[int, float]]:
        """`node` and its ancestors up to `above`, with what `reward` is worth there."""
        while node != above:
            yield node, reward
            reward *= self.discount
            node = self.parent[node]

    def hold(self, node: int, count: int) -> None:
        """Add `count` simulations in flight (negative: take them back) to `node` and all its
        ancestors.
        """
        while node >= 0:
            self.virtual[node] += count
            node = self.parent[node]

    def q(self, node: int) -> float:
        """Q(node) = W/N, the mean reward of the visits; 0 without one."""
        return self.W[node] / self.N[node] if self.N[node] else 0.0

    def maximise(self) -> None:
        """From now on Q is the largest of what was backed up to a node, gamma^d V of a state d
        steps below it: no mean of draws, where a step leads to one state and the next one is
        chosen. What was backed up before counts too.
        """
        if self.best is None:
            self.best = [0.0] * len(self)
            for node, reward, above in self.backups:
                for at, worth in self.upwards(node, reward, above):
                    self.best[at] = max(self.best[at], worth)

    def scaled(self, node: int, visits: int) -> float:
        """Q of a node as selection reads it in its parent: what was backed up over `visits`, which
        are those in flight too, scaled as `rescale` says.
        """
        total = self.W[node] if self.best is None else self.N[node] * self.best[node]
        return (self.discount * total / visits - self.low) / self.span

    def rescale(self) -> None:
        """Have `scaled` give [0, 1], by the least and largest Q over the visited nodes below the
        root (Schrittwieser et al. 2020, MuZero, appendix B, equation 5).
        """
        self.low, self.span = 0.0, 1.0
        visits = enumerate(self.N[1:], 1)
        seen = [self.scaled(node, count) for node, count in visits if count]
        self.low = min(seen, default=0.0)
        self.span = max(seen, default=0.0) - self.low or 1.0

    def path(self, node: int) -> list[int]:
        """Nodes from below the root down to `node`."""
        nodes = []
        while node > 0:
            nodes.append(node)
            node = self.parent[node]
        nodes.reverse()
        return nodes

    def depths(self) -> list[int]:
        """The number of steps down to each node; the root's is 0."""
        depths = [0] * len(self)
        for node in range(1, len(self)):  # parents come before their children
            depths[node] = depths[self.parent[node]] + 1
        return depths
