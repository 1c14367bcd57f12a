"""Credit over a whole tree, for a trainer that reads verifiers' traces: `Q(node) - V(parent)` on each node's tokens.

    uv run alphazero-llm-trainer export --data TREES --kind rollouts --out rollouts.jsonl
    uv run python examples/tree_credit.py rollouts.jsonl

An algorithm of prime-rl would call `assign_advantages` on each trace of a finished group; it was not tried there. `export
--credit step` counts a step once for each response through it, as `train` does; here it is counted once.
"""

import json
import sys
from pathlib import Path
from typing import Any

from verifiers.v1.episode import WireEpisode


def assign_advantages(trace: Any) -> None:
    """A node is worth the mean outcome of the responses through it; its tokens get what it is worth more than its parent."""
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
            node.advantages = [sums[at] / counts[at] - sums[node.parent] / counts[node.parent]] * sum(node.mask)


if __name__ == "__main__":
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        [trace] = WireEpisode.model_validate(json.loads(line)).traces
        assign_advantages(trace)
        print(
            f"{trace.id}: {len(trace.branches)} responses, {[node.advantages[:1] for node in trace.nodes if node.advantages]}"
        )
