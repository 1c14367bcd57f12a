"""Steps of our trees, DPO of TRL's: `uv run python examples/trl_dpo.py [TREES MODEL]`.

Each row is two steps after one prefix, the better one chosen by the outcomes behind it. TREES is a folder that `sample`
wrote with MODEL, a folder that transformers loads. Without arguments a few questions of the embedded problems are searched
with the embedded student. Tokens are used as they were sampled: nothing is tokenised again.
"""

import sys

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.policy.folders import PACKAGED

out = "checkpoints/trl-dpo"
trees, model = sys.argv[1:] if len(sys.argv) == 3 else (f"{out}/trees", str(PACKAGED))
if len(sys.argv) == 1:
    main(["sample", "-n", "64", "--set", "problems.levels=[3, 4]", "--out", trees])
main(["export", "--data", trees, "--kind", "preferences", "--out", f"{out}/preferences.parquet"])


class TokenDPOTrainer(DPOTrainer):
    """`DPOTrainer` for rows that are tokens already, which it would look for texts in."""

    def _prepare_dataset(self, dataset, *_):
        return dataset


rows = load_dataset("parquet", data_files=f"{out}/preferences.parquet", cache_dir=f"{out}/cache")["train"]
rows = rows.map(lambda row: {"prompt_ids": row["prompt_ids"] + row["prefix_ids"]})
trainer = TokenDPOTrainer(
    AutoModelForCausalLM.from_pretrained(model),
    args=DPOConfig(f"{out}/run", max_steps=4, learning_rate=1e-4, bf16=False, report_to="none"),
    train_dataset=rows,
    processing_class=AutoTokenizer.from_pretrained(model),
)
print(f"{len(rows)} pairs of steps, loss {trainer.train().training_loss:.4f}")
