"""Trees of ours, trainer of TRL's: `uv run python examples/trl_sft.py [SOURCE MODEL]`, about a
minute.

Questions of SOURCE are searched with MODEL, a folder that transformers loads; TRL's `SFTTrainer`
learns from the right responses. Tokens are used as they were sampled: nothing is tokenised again.
Accuracy on test problems is printed before and after.
"""

import sys
from pathlib import Path

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

import alphazero_llm_trainer as az
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.policy.folders import PACKAGED

out = "checkpoints/trl-sft"
source, model = (
    sys.argv[1:]
    if len(sys.argv) == 3
    else (f"{Path(__file__).parent}/coins.py:tasks", str(PACKAGED))
)
main(["sample", "--source", source, "--model", model, "-n", "150", "--out", f"{out}/trees"])
main(["export", "--data", f"{out}/trees", "--kind", "sft", "--out", f"{out}/sft.parquet"])

rows = load_dataset("parquet", data_files=f"{out}/sft.parquet", cache_dir=f"{out}/cache")["train"]
rows = rows.map(
    lambda row: {
        "input_ids": row["prompt_ids"] + row["completion_ids"],
        "completion_mask": [0] * len(row["prompt_ids"]) + [1] * len(row["completion_ids"]),
    },
    remove_columns=rows.column_names,
)
settings = {
    "max_steps": 60,
    "learning_rate": 1e-3,
    "completion_only_loss": True,
    "bf16": False,
    "report_to": "none",
}
network, tokenizer = (
    AutoModelForCausalLM.from_pretrained(model),
    AutoTokenizer.from_pretrained(model),
)
trainer = SFTTrainer(
    network, SFTConfig(f"{out}/run", **settings), train_dataset=rows, processing_class=tokenizer
)
trainer.train()
trainer.save_model(f"{out}/student")
for name, folder in (("before", model), ("after", f"{out}/student")):
    table = az.evaluate(
        source, folder, methods="greedy", num=60, out=f"{out}/{name}", progress=False
    )
    print(f"{name}: {table.rows[0]['accuracy'][0]:.3f} of the test problems are right")
