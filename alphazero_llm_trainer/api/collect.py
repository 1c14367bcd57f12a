"""`collect`: searched and graded trees of questions, for a training loop of your own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import load_training
from ..config.refusals import refuse_conflicts
from ..learning.collector import Collector
from ..learning.methods.by_name import method_of
from ..policy.chat import check_prompts
from ..problems.load import opening, tasks_of, with_context
from ..runs.start import check_searches
from ..tree.graded import GradedTree
from .settings import Problems, Reward, address_of, configure_call, outside_loops, reward_address

if TYPE_CHECKING:
    import torch

    from ..policy.student import Student


def collect(
    problems: Problems = "auto",
    model: str | Path | Student = "auto",
    *,
    num: int = 96,
    start: int = 0,
    split: str = "train",
    reward: Reward = None,
    seed: int | None = None,
    value: torch.nn.Linear | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[GradedTree]:
    """The trees of `num` questions, searched as a round of `train` does and graded against gold.

    Args:
        problems: an address of `--source`, a source, or tasks.
        model: see `load`. After its weights have changed, tell a loaded student's engine:
            `student.engine.set_policy(None, version)`.
        num, start, split: how many questions, the number of the first, and of which split.
        reward: your own, see `train`.
        seed: of everything random.
        value: a layer `[1, H]` over the student's last hidden states, whose sigmoid guides the
            searches of `train.method: alphazero`; without one its trees are chains.
        config: keys of training.yaml, nested or dotted, over the recipe of `train.method`.

    Returns:
        Trees in the order of the questions. `responses` are a tree's finished responses, with
        `token_ids` and `logprobs` `[T]`, `reward`, `right` and `samples`; its prompt is
        `prompt_ids`. Perplexity (PRE) has no part in their rewards.

    Raises:
        AlphaZeroError: the arguments or the model are wrong; one sentence with the fix.
    """
    arguments = {
        "problems.source": address_of(problems),
        "rewards.custom": reward_address(reward),
        "rewards.use_student_model": False,
        "seed": seed,
    }
    resolved, folder = configure_call(model, config, arguments, load_training)
    resolved = check_searches(resolved, "collect")
    tasks = tasks_of(resolved, split, num, start)

    def call() -> list[GradedTree]:
        from ..policy.student import Student, load_student

        student, config = model, with_context(resolved)
        if not isinstance(student, Student):
            student = load_student(config, path=folder, opening=opening(resolved), trained=False)
        check_prompts(student, [task.problem.question for task in tasks])
        method = method_of(resolved.train.method)
        collector = Collector(student, resolved, method, None)
        refuse_conflicts(resolved, "collect", method=method, valued=value is not None)
        if value is not None:
            collector.guide(value)

        async def search() -> dict[str, GradedTree]:
            pairs = [(task.problem.id, task) for task in tasks]
            return {tree.key: tree async for tree in collector.collect(pairs, resolved.seed)}

        trees = asyncio.run(search())
        return [trees[task.problem.id] for task in tasks]

    return outside_loops(call)
