"""The game of numbers, searched and drawn: `uv run python examples/numbers_game.py`.

A student of a small vocabulary is trained from scratch on games that were played backwards, then it searches one.
"""

import subprocess

import alphazero_llm_trainer as az
from alphazero_llm_trainer.viewer.text import draw_tree

STUDENT = "checkpoints/numbers-student"
# 60 updates take a minute and give a student that makes legal moves; 5,000 give one that wins.
command = (
    f"alphazero-llm-trainer sft --source numbers --model small --out {STUDENT} --eval-size 20 --set train.sft.steps=60"
)
subprocess.run(command.split(), check=True)

result = az.search("Numbers: 3 5 8. Target: 16.", model=STUDENT, simulations=20, config={"problems.source": "numbers"})
print(draw_tree(result.tree, None if result.choice is None else result.choice.node))
print(f"answer {result.answer} for {result.cost.sampled_tokens} sampled tokens")
