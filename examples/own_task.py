"""Your own problems and your own reward, in Python: `uv run python examples/own_task.py`."""

import alphazero_llm_trainer as az

QUESTION = "Ana has {} pens. She buys 4 more pens. How many pens does Ana have now?"
tasks = [az.Task(az.Problem(f"pens/{i}", QUESTION.format(i), "pens"), str(i + 4)) for i in range(2, 62)]


def brief(problem: az.Problem, response: str, task: az.Task) -> float:
    """A number in [0, 1]: short responses are better. It may be `async`, and it may look at `task.gold`."""
    return 1.0 / (1.0 + len(response) / 40)


run = az.train(
    tasks,
    reward=brief,
    method="grpo",
    model="embedded",
    num_examples=40,
    eval_size=6,
    out="checkpoints/own-task",
    config={"rewards.custom_weight": 0.2, "train.validation_size": 3},
)
print(run)
for saved in list(az.read_trees(run.folder))[:3]:
    best = max(saved.paths, key=lambda path: path.reward)
    print(f"{saved.problem.question} -> {best.reward:.2f} with {len(saved.paths)} responses")
