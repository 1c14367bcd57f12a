"""Credit over a whole tree, for a trainer that reads verifiers' traces: `Q(node) - V(parent)` on
each node's tokens.

`uv run python examples/tree_credit.py [ROLLOUTS.jsonl]` reads what `export --kind rollouts` wrote;
without a file a few questions are searched first.

In prime-rl `assign_advantages` has its place in the algorithm of prime_rl_trees.py.
`train.credit=step` counts a step once for each response through it; here it is counted once.
"""

import json
import sys
from pathlib import Path
from typing import Any

from verifiers.v1.episode import WireEpisode

from alphazero_llm_trainer.cli.main import main


def assign_advantages(trace: Any) -> None:
    """A node is worth the mean outcome of the responses through it; its tokens get what it is worth
    more than its parent.
    """
    nodes = trace.nodes
    counts, sums = [0] * len(nodes), [0.0] * len(nodes)
    for response in trace.info["responses"]:
        at = response["leaf"]
        while at is not None:  # up to the prompt
            counts[at] += response["samples"]
            sums[at] += response["samples"] * response["outcome"]
            at = nodes[at].parent
    for at, node in enumerate(nodes):
        if node.sampled:
            node.advantages = [
                sums[at] / counts[at] - sums[node.parent] / counts[node.parent]
            ] * sum(node.mask)


def read(file: Path) -> list[Any]:
    """The traces of a file that `export --kind rollouts` wrote."""
    return [
        WireEpisode.model_validate(json.loads(line)).traces[0]
        for line in file.read_text("utf-8").splitlines()
    ]


if __name__ == "__main__":
    rollouts = Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints/tree-credit/rollouts.jsonl")
    if len(sys.argv) == 1:
        trees = str(rollouts.parent / "trees")
        main(["sample", "-n", "8", "--set", "problems.levels=[2]", "--out", trees])
        main(["export", "--data", trees, "--kind", "rollouts", "--out", str(rollouts)])
    for trace in read(rollouts):
        assign_advantages(trace)
        steps = [round(node.advantages[0], 2) for node in trace.nodes if node.advantages]
        print(f"{trace.id}: {len(trace.branches)} responses, credit of each step {steps}")
