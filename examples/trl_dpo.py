"""Steps of our trees, DPO of TRL's: `uv run python examples/trl_dpo.py [SOURCE MODEL]`, about a
minute.

Each row is two steps after one prefix, the better one chosen by the outcomes behind it. Questions
of SOURCE are searched with MODEL, a folder that transformers loads. Tokens are used as they were
sampled: nothing is tokenised again. A fifth of the pairs is held out: how often their better step
gained more than the worse one is printed.
"""

import sys
from pathlib import Path

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.policy.folders import PACKAGED

out = "checkpoints/trl-dpo"
source, model = (
    sys.argv[1:]
    if len(sys.argv) == 3
    else (f"{Path(__file__).parent}/coins.py:tasks", str(PACKAGED))
)
main(["sample", "--source", source, "--model", model, "-n", "300", "--out", f"{out}/trees"])
main(
    [
        "export",
        "--data",
        f"{out}/trees",
        "--kind",
        "preferences",
        "--out",
        f"{out}/preferences.parquet",
    ]
)


class TokenDPOTrainer(DPOTrainer):
    """`DPOTrainer` for rows that are tokens already, which it would look for texts in."""

    def _prepare_dataset(self, dataset, *_):
        return dataset


rows = load_dataset("parquet", data_files=f"{out}/preferences.parquet", cache_dir=f"{out}/cache")[
    "train"
]
parts = rows.map(
    lambda row: {"prompt_ids": row["prompt_ids"] + row["prefix_ids"]}
).train_test_split(0.2, seed=7)
trainer = TokenDPOTrainer(
    AutoModelForCausalLM.from_pretrained(model),
    args=DPOConfig(f"{out}/run", max_steps=60, learning_rate=1e-4, bf16=False, report_to="none"),
    train_dataset=parts["train"],
    eval_dataset=parts["test"],
    processing_class=AutoTokenizer.from_pretrained(model),
)
trainer.train()
print(
    f"the better step gained more in {trainer.evaluate()['eval_rewards/accuracies']:.0%} of "
    f"{len(parts['test'])} pairs"
)
