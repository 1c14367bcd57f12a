"""Golden trees of Gumbel search: what mctx's `gumbel_muzero_policy` does on made-up priors and
values.

    uv run --no-project --with mctx python scripts/gumbel_golden.py

writes tests/golden/gumbel.json, with which tests/test_gumbel.py compares this package's search.
mctx and jax are needed here alone. A case is a game without an end, see `child`.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

STATES = 211
OUT = Path(__file__).parents[1] / "tests" / "golden" / "gumbel.json"
SIZES = [  # actions, simulations, considered
    *[(2, 1, 2), (2, 17, 2), (3, 8, 16), (4, 16, 4), (5, 32, 3), (5, 60, 16), (7, 50, 4)],
    *[(16, 16, 16), (16, 64, 16), (20, 40, 16), (20, 100, 8), (6, 90, 1), (12, 7, 12), (9, 33, 5)],
]
CASES = [
    {"seed": seed, "actions": actions, "simulations": simulations, "considered": considered}
    for seed, (actions, simulations, considered) in enumerate(SIZES)
]


def child(state: Any, action: Any, actions: int) -> Any:
    """The state after an action: numbers, or arrays of jax."""
    return (state * actions + action + 1) % STATES


def tables(seed: int, actions: int) -> tuple[list[list[float]], list[float]]:
    """Logits `[STATES, actions]` and values `[STATES]` in [0, 1] of a case."""
    rng = Random(seed)
    logits = [[round(rng.gauss(0, 1.5), 3) for _ in range(actions)] for _ in range(STATES)]
    return logits, [round(rng.random(), 3) for _ in range(STATES)]


def mctx_case(case: dict[str, int]) -> dict[str, Any]:
    """The case with mctx's noise, the nodes in the order it made them (parent, action), root
    visits, policy and choice.
    """
    import jax
    import jax.numpy as jnp
    import mctx

    jax.config.update("jax_enable_x64", True)
    actions = case["actions"]
    logits, values = (
        jnp.array(table, dtype=jnp.float64) for table in tables(case["seed"], actions)
    )

    def step(params: None, key: Any, action: Any, state: Any) -> Any:
        after = child(state, action, actions)
        nothing = jnp.zeros(1, dtype=jnp.float64)
        output = mctx.RecurrentFnOutput(
            reward=nothing, discount=nothing + 1, prior_logits=logits[after], value=values[after]
        )
        return output, after

    root = mctx.RootFnOutput(
        prior_logits=logits[0][None], value=values[:1], embedding=jnp.zeros(1, dtype=jnp.int32)
    )
    found = mctx.gumbel_muzero_policy(
        None,
        jax.random.PRNGKey(case["seed"]),
        root,
        step,
        num_simulations=case["simulations"],
        max_num_considered_actions=case["considered"],
    )
    tree = found.search_tree
    nodes = list(zip(tree.parents[0].tolist(), tree.action_from_parent[0].tolist(), strict=True))
    return {
        **case,
        "noise": tree.extra_data.root_gumbel[0].tolist(),
        "nodes": nodes[1:],
        "root_visits": tree.children_visits[0, 0].tolist(),
        "policy": found.action_weights[0].tolist(),
        "action": int(found.action[0]),
    }


def main() -> None:
    OUT.write_text(
        json.dumps([mctx_case(case) for case in CASES], separators=(",", ":")) + "\n",
        encoding="utf-8",
    )
    print(f"{len(CASES)} cases: {OUT}")


if __name__ == "__main__":
    main()
