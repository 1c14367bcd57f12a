"""The `search` command: search one question and print the tree."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..types import Problem
from .base import Stop, add_config_arguments, resolve


def add_search(commands: Any) -> None:
    parser = commands.add_parser("search", help="search one question and print the tree")
    parser.add_argument("question", nargs="?", help="the question's text (default: an embedded test problem)")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="which embedded test problem")
    parser.add_argument(
        "--path", type=Path, metavar="DIR", help="a student folder, such as checkpoints/run-001/student"
    )
    parser.add_argument("--iterations", type=int, metavar="N", help="simulations")
    parser.add_argument("--mode", choices=("step", "token"), help="what a node of the tree is")
    parser.add_argument(
        "--value", metavar="DIR", help="a value network: the search asks it, and rolls out once at the end"
    )
    parser.add_argument("--json", action="store_true", help="print the whole tree as JSON instead")
    add_config_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        named = {"iterations": args.iterations, "mode": args.mode, "value": args.value}
        if args.value is not None:
            named |= {"rollout": "none", "select": "puct"}
        extra = {"search": {key: value for key, value in named.items() if value is not None}}
        return run_search(args, resolve(args, extra))

    parser.set_defaults(run=run)


def run_search(args: argparse.Namespace, config: Config) -> int:
    """Search one question with the student alone and print its tree, the choice and the cost."""
    from ..collect import Perplexity, answer_search
    from ..policy.student import load_student
    from ..problems.load import load_tasks
    from ..problems.prompts import system_prompt
    from ..search.select import constant
    from ..viewer.text import draw_tree

    if args.question is None:
        source = "embedded"
        problem = load_tasks("embedded", "test", 1, levels=config.problems.levels, start=args.index)[0].problem
    else:
        problem, source = Problem("question", args.question, "user"), config.problems.source
    alone = config.search.value is None
    student = load_student(config, path=args.path, system_prompt=system_prompt(source), inference=alone)
    perplexity = Perplexity(student, config.search.max_tokens, own=True) if config.rewards.use_student_model else None
    value = None
    if config.search.value is not None:
        from ..policy.value_function import load_value

        value = load_value(Path(config.search.value), student, config)
    result = asyncio.run(answer_search(student, config, perplexity, Stop(), value).run(problem, config.seed))
    choice = result.choice
    if args.json:
        rule = config.search.rule
        print(
            json.dumps(
                {
                    "question": problem.question,
                    "answer": None if choice is None else choice.answer,
                    "why": None if choice is None else choice.why,
                    "chosen": None if choice is None else choice.node,
                    "response": None if choice is None else choice.response,
                    "search": {"rule": rule, "exploration": constant(rule, config.search.exploration)},
                    "ended_by": result.ended_by,
                    "cost": result.cost.as_dict(),
                    "tree": result.tree.to_dict(),
                }
            )
        )
        return 0
    print(problem.question)
    print(draw_tree(result.tree, None if choice is None else choice.node))
    if choice is None:
        print("no response was finished: raise search.iterations or search.max_tokens")
    else:
        print(f"answer {choice.answer}: {choice.why}; {choice.visits} visits, value {choice.value:.3f}")
    cost = result.cost
    scored = f" and {cost.scored_tokens} scored" if cost.scored_tokens else ""
    print(
        f"ended by {result.ended_by}: {cost.sampled_tokens} tokens sampled{scored}, {cost.cached_tokens} prefix tokens cached,"
        f" {cost.calls} calls, {cost.seconds:.2f} s"
    )
    return 0
