"""Trees of ours, trainer of TRL's: `uv run python examples/trl_sft.py [TREES MODEL]`.

TREES is a folder that `sample` wrote with MODEL, a folder that transformers loads. Without arguments a few questions of the
embedded problems are searched with the embedded student. Tokens are used as they were sampled: nothing is tokenised again.
"""

import sys

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.policy.folders import PACKAGED

out = "checkpoints/trl-sft"
trees, model = sys.argv[1:] if len(sys.argv) == 3 else (f"{out}/trees", str(PACKAGED))
if len(sys.argv) == 1:
    main(["sample", "-n", "24", "--out", trees])
main(["export", "--data", trees, "--kind", "sft", "--out", f"{out}/sft.parquet"])

rows = load_dataset("parquet", data_files=f"{out}/sft.parquet", cache_dir=f"{out}/cache")["train"]
rows = rows.map(
    lambda row: {
        "input_ids": row["prompt_ids"] + row["completion_ids"],
        "completion_mask": [0] * len(row["prompt_ids"]) + [1] * len(row["completion_ids"]),
    },
    remove_columns=rows.column_names,
)
trainer = SFTTrainer(
    AutoModelForCausalLM.from_pretrained(model),
    args=SFTConfig(
        f"{out}/run", max_steps=4, learning_rate=1e-4, completion_only_loss=True, bf16=False, report_to="none"
    ),
    train_dataset=rows,
    processing_class=AutoTokenizer.from_pretrained(model),
)
print(f"{len(rows)} responses, loss {trainer.train().training_loss:.4f}")
