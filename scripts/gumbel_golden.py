"""Golden trees of mctx on made-up priors and values: of its `gumbel_muzero_policy`, and of its
`muzero_policy` with Q scaled by the least and largest of the whole tree (MuZero, appendix B).

    uv run --no-project --with mctx python scripts/gumbel_golden.py

writes tests/golden/gumbel.json and scaled_puct.json, with which tests compare this package's
search. mctx and jax are needed here alone. A case is a game without an end, see `child`.
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


PUCT = [  # actions, simulations, c, discount
    *[(2, 17, 2.0, 1.0), (3, 40, 0.25, 1.0), (5, 60, 0.25, 0.95), (8, 100, 0.1, 0.9)],
    *[(4, 33, 1.25, 0.95), (6, 80, 0.5, 1.0), (12, 120, 0.25, 0.99), (7, 64, 0.05, 0.8)],
]


def over_tree(tree: Any, node: Any) -> Any:
    """Q of a node's actions, scaled by the least and largest of all visited ones of the tree; 0 of
    an unvisited one.
    """
    import jax.numpy as jnp

    q = tree.children_rewards + tree.children_discounts * tree.children_values
    seen = tree.children_visits > 0
    low = jnp.min(jnp.where(seen, q, jnp.inf))
    span = jnp.max(jnp.where(seen, q, -jnp.inf)) - low
    scaled = (q[node] - low) / jnp.where(span > 0, span, 1.0)
    return jnp.where(seen[node], scaled, 0.0)


def puct_case(seed: int, actions: int, simulations: int, c: float, discount: float) -> Any:
    """The nodes in the order mctx made them (parent, action), and the visits of the root's
    children.
    """
    import jax
    import jax.numpy as jnp
    import mctx

    root, step = game(seed, actions, discount)
    found = mctx.muzero_policy(
        None,
        jax.random.PRNGKey(seed),
        root,
        step,
        num_simulations=simulations,
        qtransform=over_tree,
        dirichlet_fraction=0.0,
        pb_c_init=jnp.float64(c),
        pb_c_base=jnp.float64(1e18),
    )
    tree = found.search_tree
    nodes = list(zip(tree.parents[0].tolist(), tree.action_from_parent[0].tolist(), strict=True))
    sizes = {"seed": seed, "actions": actions, "simulations": simulations}
    return {
        **sizes,
        "c": c,
        "discount": discount,
        "nodes": nodes[1:],
        "root_visits": tree.children_visits[0, 0].tolist(),
        "root_value": float(tree.node_values[0, 0]),
    }


def game(seed: int, actions: int, discount: float = 1.0) -> tuple[Any, Any]:
    """A case's root, and the function of a step, as mctx takes them."""
    import jax
    import jax.numpy as jnp
    import mctx

    jax.config.update("jax_enable_x64", True)
    logits, values = (jnp.array(table, dtype=jnp.float64) for table in tables(seed, actions))

    def step(params: None, key: Any, action: Any, state: Any) -> Any:
        after = child(state, action, actions)
        nothing = jnp.zeros(1, dtype=jnp.float64)
        output = mctx.RecurrentFnOutput(
            reward=nothing,
            discount=nothing + discount,
            prior_logits=logits[after],
            value=values[after],
        )
        return output, after

    root = mctx.RootFnOutput(
        prior_logits=logits[0][None], value=values[:1], embedding=jnp.zeros(1, dtype=jnp.int32)
    )
    return root, step


def mctx_case(case: dict[str, int]) -> dict[str, Any]:
    """The case with mctx's noise, the nodes in the order it made them (parent, action), root
    visits, policy and choice.
    """
    import jax
    import mctx

    root, step = game(case["seed"], case["actions"])
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
    cases = [puct_case(seed, *sizes) for seed, sizes in enumerate(PUCT)]
    text = json.dumps(cases, separators=(",", ":")) + "\n"
    (OUT.parent / "scaled_puct.json").write_text(text, encoding="utf-8")
    print(f"{len(CASES)} and {len(PUCT)} cases: {OUT.parent}")


if __name__ == "__main__":
    main()
