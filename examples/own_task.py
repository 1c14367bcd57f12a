"""Your own problems and your own reward, in Python: `uv run python examples/own_task.py`, about
half a minute.
"""

import random

import alphazero_llm_trainer as az

QUESTION = (
    "Ben has {} red pens and {} blue pens. He gives {} pens to Ana. How many pens does Ben have "
    "left?"
)
numbers = random.Random(1)
drawn = {
    (numbers.randint(4, 25), numbers.randint(2, 12), numbers.randint(2, 9)) for _ in range(700)
}
tasks = [
    az.Task(az.Problem(f"pens/{a}-{b}-{c}", QUESTION.format(a, b, c), "pens"), str(a + b - c))
    for a, b, c in sorted(drawn)
    if a + b > c
]


def near(problem: az.Problem, response: str, task: az.Task) -> float:
    """A number in [0, 1]: an answer that is nearly right earns something too. It may be `async`."""
    answer = response.rpartition("####")[2].strip()
    return 1.0 / (1.0 + abs(int(answer) - int(task.gold))) if answer.isdigit() else 0.0


run = az.train(
    tasks,
    reward=near,  # beside correctness and perplexity
    method="grpo",  # learns from the reward; "rft" would take the right answers alone
    model="embedded",
    num_examples=400,
    eval_size=60,
    out="checkpoints/own-task",
    config={
        "rewards.custom_weight": 0.2,
        "train.validation_size": 20,
        # a fifth of the usual one: this student knows most of it
        "train.optimizer.learning_rate": 1e-4,
    },
)
print(run)
print(az.search(QUESTION.format(9, 8, 4), model=run.student).answer, "pens are left of 9 + 8 - 4")
