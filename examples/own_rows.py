"""Your own rows and your own model: `uv run python examples/own_rows.py [ROWS.jsonl MODEL]`.

Rows need a question and an answer column; MODEL is a hub id or a folder that transformers loads.
Without arguments it writes rows that the embedded student can learn, in half a minute.
"""

import itertools
import json
import sys
from pathlib import Path

import alphazero_llm_trainer as az

QUESTION = (
    "{} has {} coins. On the way home he gets {} coins. Zoe has {} more coins than {}. How many "
    "coins does Zoe have?"
)

rows, model = Path("rows.jsonl"), "embedded"
if len(sys.argv) == 3:
    rows, model = Path(sys.argv[1]), sys.argv[2]
else:
    every = itertools.product(
        ("Ben", "Leo", "Max", "Sam", "Tom"), range(4, 24, 2), range(2, 8), (2, 5)
    )
    with rows.open("w", encoding="utf-8") as file:
        for name, has, gets, more in every:
            question = QUESTION.format(name, has, gets, more, name)
            file.write(json.dumps({"question": question, "answer": str(has + gets + more)}) + "\n")

run = az.train(
    str(rows),
    model=model,
    num_examples=400,
    eval_size=60,
    out="checkpoints/own-rows",
    config={"problems.grade": "numbers", "train.validation_size": 20},
)
print(run)
