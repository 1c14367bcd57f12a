"""`export --kind rollouts`: the responses of a tree as episodes of verifiers, which prime-rl's trainer reads.

The layout is that of verifiers 0.4 (`verifiers.v1.episode.Episode`, trace version 1), the one of `traces.jsonl` that
`vf-eval` writes: an episode a line, with one trace of two nodes, the prompt and the response.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..mcts.extract import OUTSIDE, Trajectory, step_values, trajectories
from ..mcts.targets import outcomes
from ..mcts.tree import Tree
from ..training.credit import group_advantages, is_flat, step_advantages

CREDITS = ("group", "step")
TRACE_VERSION = 1
HARNESS = "alphazero-llm-trainer"
CUT = ("length", "depth")  # verdicts of responses that a limit ended


def episodes(record: dict[str, Any], tree: Tree, credit: str) -> Iterator[dict[str, Any]]:
    """One episode for each distinct response that the student wrote alone, all of one group.

    Log-probabilities (nats, at temperature 1) and advantages stand for the response's tokens; the prompt's have a mask of
    False. Responses with a step of a teacher's are left out, and so don't enter the group's mean: `train` leaves them out
    by default too.
    """
    found = [one for one in trajectories(tree) if one.student]
    for index, (one, advantages) in enumerate(zip(found, credited(tree, found, credit), strict=True)):
        yield episode(record, one, advantages, index)


def credited(tree: Tree, found: list[Trajectory], credit: str) -> list[list[float]]:
    """One advantage a token `[T]` of each response.

    `group`: its reward against the others', over all samples (GRPO; a response sampled k times counts k times).
    `step`: Q(child) - V(parent) of each step, in [-1, 1], not scaled.
    """
    if credit == "step":
        counts, sums = outcomes(tree)
        return [step_advantages(step_values(one, worth(one), counts, sums), one.lengths, scale=1.0) for one in found]
    rewards = [worth(one) for one in found]
    if is_flat(rewards):
        return [[0.0] * len(one.token_ids) for one in found]
    whole = group_advantages(rewards, [one.samples for one in found])
    return [[one.samples * a] * len(one.token_ids) for one, a in zip(found, whole, strict=True)]


def worth(found: Trajectory) -> float:
    """The response's outcome, and the search's reward where none is known."""
    return found.reward if found.outcome is None else found.outcome


def episode(record: dict[str, Any], found: Trajectory, advantages: list[float], index: int) -> dict[str, Any]:
    """The record of one response. Its `info` says where in which tree it is."""
    problem, prompt = record["problem"], record["prompt_ids"]
    name = f"{record['key']}/{index}"
    task = {
        "type": "AlphaZeroTask",
        "data": {"id": problem["id"], "prompt": problem["question"], "source": problem["source"]},
        "key": problem["id"],
    }
    trace = {
        "version": TRACE_VERSION,
        "id": name,
        "verifiers": {"version": version("verifiers")},
        "task": task,
        "agent": {"config": {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}},
        "nodes": [
            {
                "message": {"role": "user", "content": problem["question"]},
                "token_ids": prompt,
                "mask": [False] * len(prompt),
            },
            {
                "parent": 0,
                "message": {"role": "assistant", "content": found.text},
                "sampled": True,
                "token_ids": found.token_ids,
                "mask": [True] * len(found.token_ids),
                "logprobs": found.logprobs,
                "advantages": advantages,
            },
        ],
        "calls": [
            {
                "node": 1,
                "finish_reason": "length" if found.verdict in CUT else "stop",
                "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(found.token_ids)},
            }
        ],
        "rewards": {"outcome": {"score": worth(found)}},
        "metrics": {"search_reward": found.reward, "samples": found.samples},
        "info": {
            "tree": record["key"],
            "policy_version": record["policy_version"],
            # Tokens after the tree's last node, a rollout's, belong to none.
            "tree_nodes": [None if node == OUTSIDE else node for node in found.nodes],
            "tree_lengths": found.lengths,
        },
        "is_completed": True,
        "ok": True,
    }
    return {
        "id": name,
        "env": {"id": HARNESS},
        "task": task,
        "group": {"id": record["key"]},
        "ok": True,
        "traces": [trace],
    }


def write_lines(rows: Iterable[dict[str, Any]], path: Path) -> int:
    """Write each row as a line of JSON; returns how many there are."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
            count += 1
    return count
