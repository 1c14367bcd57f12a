"""Train on an installed verifiers taskset: `uv run python examples/verifiers_taskset.py [ENV_ID]`.

The default is this package's own taskset, addressed as anybody else's. `?` sets the taskset's options.
"""

import sys

import alphazero_llm_trainer as az

env_id = sys.argv[1] if len(sys.argv) > 1 else "alphazero-llm-trainer?source=embedded&train_size=60"
run = az.train(
    f"verifiers:{env_id}",
    model="embedded",
    num_examples=24,
    eval_size=8,
    out="checkpoints/verifiers-taskset",
    config={"train.validation_size": 4},
)
print(run)
