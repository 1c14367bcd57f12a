"""Your own rows and your own model: `uv run python examples/own_rows.py ROWS.jsonl MODEL`.

Rows need a question and an answer column; MODEL is a hub id or a folder that transformers loads. Without arguments it
writes a few rows and takes the embedded student, so that it runs anywhere.
"""

import json
import sys
from pathlib import Path

import alphazero_llm_trainer as az

rows, model = Path("rows.jsonl"), "embedded"
if len(sys.argv) == 3:
    rows, model = Path(sys.argv[1]), sys.argv[2]
else:
    names = [("Ana", "pens"), ("Tom", "coins"), ("Zoe", "books"), ("Leo", "cards")]
    with rows.open("w", encoding="utf-8") as file:
        for n in range(160):
            name, things = names[n % 4]
            has, buys = 2 + n % 11, 3 + n % 7
            question = (
                f"{name} has {has} {things}. She buys {buys} more {things}. How many {things} does {name} have now?"
            )
            file.write(json.dumps({"question": f"{question} ({n})", "answer": str(has + buys)}) + "\n")

run = az.train(
    str(rows),
    model=model,
    num_examples=32,
    eval_size=12,
    out="checkpoints/own-rows",
    config={"problems.grade": "numbers", "train.validation_size": 6},
)
print(run)
