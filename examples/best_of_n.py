"""Best-of-n against tree search at equal tokens, on the embedded problems: `uv run python
examples/best_of_n.py`.
"""

import alphazero_llm_trainer as az

table = az.evaluate(
    "embedded",
    model="embedded",
    methods=["greedy", "best-of-n", "mcts"],
    budget_tokens=[100, 200],
    verifier="calculator",  # every `a op b = c` must be true; it never sees the gold answer
    num=200,
    out="checkpoints/best-of-n",
    resume=False,
)
print(table)  # one table a budget, the best method first
for row in table.rows:
    value, low, high = row["accuracy"]
    print(f"{row['method']:10} {row['budget']:4} tokens: {value:.3f} [{low:.3f}, {high:.3f}]")
print(f"the same as a page: {table.folder / 'report.html'}")
