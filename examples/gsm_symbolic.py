"""reasoning-gym's GSM-symbolic with whole templates held out: `uv run python examples/gsm_symbolic.py`.

Needs the extra `tasks`. The embedded student knows too few words for these stories: name a model to see more than zeros.
"""

import sys

import alphazero_llm_trainer as az

model = sys.argv[1] if len(sys.argv) > 1 else "embedded"
table = az.evaluate(
    "gsm-symbolic",
    model=model,
    methods=["greedy", "majority"],
    budget_tokens=300,
    num=10,
    out="checkpoints/gsm-symbolic",
    config={"problems.hold_out": "templates"},  # no test problem's template is in training
)
print(table)
