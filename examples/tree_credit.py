"""Credit over a whole tree, for a trainer that reads verifiers' traces: `Q(node) - V(parent)` on each node's tokens.

    uv run alphazero-llm-trainer sample --num 20 --out trees
    uv run alphazero-llm-trainer export --data trees --kind rollouts --out rollouts.jsonl
    uv run python examples/tree_credit.py rollouts.jsonl

`assign_advantages` is all that a trainer needs: an algorithm of prime-rl would call it on each trace of a finished group. It
was not tried inside prime-rl. `export --credit step` counts a step once for each response through it, as `train` does, and
weighs by the search's visits; here it is counted once and by samples.
"""

from __future__ import annotations

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
            gain = sums[at] / counts[at] - sums[node.parent] / counts[node.parent]
            node.advantages = [gain] * sum(node.mask)


def main() -> None:
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        [trace] = WireEpisode.model_validate(json.loads(line)).traces
        assign_advantages(trace)
        best = max((node for node in trace.nodes if node.advantages), key=lambda node: node.advantages[0])
        text = " ".join((best.message.content or "").split())
        print(
            f"{trace.id}: {len(trace.branches)} responses; the step that is worth most: {best.advantages[0]:+.2f}  {text}"
        )


if __name__ == "__main__":
    main()
