"""The `search` command: search one question and print the tree."""

from __future__ import annotations

import argparse
from functools import partial

from ..config.load import load_answering
from ..live import Progress
from ..tree.extract import endings, shortfall
from ..types import Problem
from .base import (
    check_critics,
    check_least,
    print_json,
    resolve_config,
    tell_loading,
)

STOPPED = {"simulations": "simulation limit", "tokens": "token budget"}


def run_search(args: argparse.Namespace) -> int:
    """Search one question with the student alone and print its tree, the choice and the cost."""
    config = resolve_config(args, load=partial(load_answering, guided=args.value is not None))
    check_least(0, index=args.index)
    check_critics(args)
    from ..problems.load import tasks_of
    from ..problems.registry import open_source, with_worlds

    config = with_worlds(config, "search", config.search.value is None)
    task = None
    if args.question is None:
        [task] = tasks_of(config, "test", 1, args.index or 0)
        problem = task.problem
    else:
        problem = Problem("question", args.question, open_source(config).name)
    with Progress(args.quiet) as progress:
        tell_loading(args, progress, config)
        from ..api.search import answer_question

        remote = config.engine.backend == "openai"
        first = FirstChain(problem.question) if remote and not args.json else None
        result = answer_question(problem, config, args.path, None, progress, first, task)
    from ..viewer.text import draw_tree

    choice = result.choice
    if args.json:
        print_json(result.record)
        return 0
    if first is None or not first.begun:
        print(problem.question)
    print(draw_tree(result.tree, None if choice is None else choice.node))
    short = shortfall(endings(result.tree), config.search.model_dump())
    if choice is None:
        more = "" if short else f": --simulations {2 * config.search.simulations}"
        print(f"no response was finished{more}")
    else:
        print(
            f"answer {choice.answer}: {choice.why}; {choice.visits} visits, value "
            f"{choice.value:.3f}"
        )
    if short is not None:
        print(short)
    cost = result.cost
    scored = f" and {cost.scored_tokens} scored" if cost.scored_tokens else ""
    if cost.turns:
        scored += f", {cost.given_tokens} given in {cost.turns} turns with {cost.tool_calls} calls"
    print(
        f"stopped: {STOPPED.get(result.ended_by, result.ended_by)}; {cost.sampled_tokens} tokens "
        f"sampled{scored}, {cost.cached_tokens} prefix tokens cached, "
        f"{cost.calls} calls, {cost.seconds:.2f} s"
    )
    return 0


class FirstChain:
    """Prints the first sample's steps as they come: what a search over a server shows at once."""

    def __init__(self, question: str) -> None:
        self.question, self.begun, self.lines = question, False, 0

    def __call__(self, number: int, text: str) -> None:
        if number:
            return
        if not self.begun:
            print(self.question, flush=True)
            self.begun = True
        from ..viewer.text import plain_line

        whole = text.split("\n")[:-1]
        for line in whole[self.lines :]:
            print(f"  {plain_line(line)}", flush=True)
        self.lines = len(whole)
