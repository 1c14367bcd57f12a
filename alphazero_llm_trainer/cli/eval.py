"""The `eval` command: methods of answering beside each other at equal tokens, with intervals."""

from __future__ import annotations

import argparse
from typing import Any

from ..config.load import Config
from ..errors import ConfigError
from ..eval.names import METHOD_NAMES
from ..files import command_line
from ..live import Progress, Stop, StoppedError
from .base import (
    EXIT_STOPPED,
    check_least,
    load_guided,
    print_json,
    resolve_config,
    tell_loading,
)


def run_eval(args: argparse.Namespace) -> int:
    """Compare, print the tables and write the folder. 130 when the user stopped it."""
    from ..api.evaluate import Evaluation, run_evaluation  # without torch

    names = (
        "methods",
        "verifier",
        "prm",
        "value",
        "num",
        "start",
        "split",
        "samples",
    )
    config, named = resolve_config(args, load=load_guided(args)), args.sources or ["auto"]
    if args.tune:
        return run_tune(args, config)
    work = Evaluation.of(
        lambda name: f"--{name.replace('_', '-')}",
        source=[config.problems.source if name == "auto" else name for name in named],
        budget_tokens=args.budget_tokens or [config.answer_budget],
        **{name: getattr(args, name) for name in names},
    )
    work.open_sources(config)  # what they refuse is said before PyTorch is loaded
    progress = Progress(args.quiet)
    try:
        with progress, Stop(progress) as stop:
            tell_loading(args, progress, config)
            table = run_evaluation(
                work, config, args.path, None, args.out, args.resume, command_line(), progress, stop
            )
    except StoppedError as error:
        progress.say(f"stopped; go on with the same command and --resume --out {error}")
        return EXIT_STOPPED
    if args.json:
        print_json(table.facts)
        return 0
    print(table)
    print(f"results.json and report.html are in {table.folder}")
    return 0


# What --tune reads no other value of.
UNTUNED: dict[str, Any] = {
    "methods": list(METHOD_NAMES),
    "samples": 0,
    "split": "test",
    **dict.fromkeys(("verifier", "prm", "value", "out")),
    "resume": False,
}


def run_tune(args: argparse.Namespace, config: Config) -> int:
    """Choose the search for a student's value, say what was best and print the table. 130 when the
    user stopped it.
    """
    from ..eval.tune import tune_search
    from ..problems.registry import with_worlds

    for name, usual in UNTUNED.items():
        if getattr(args, name) != usual:
            raise ConfigError(
                f"--tune is given with --{name}: it tries searches of its own on validation "
                "problems, so leave one of them out"
            )
    [source, *sources] = args.sources or ["auto"]
    [budget, *budgets] = args.budget_tokens or [config.answer_budget]
    if sources or budgets:
        raise ConfigError("--tune chooses for one source and one budget: name one of each")
    check_least(1, num=args.num, budget_tokens=budget)
    check_least(0, start=args.start)
    if source != "auto":
        config = config.with_values(problems={"source": source})
    with_worlds(config, "eval")  # what it refuses is said before PyTorch is loaded
    progress = Progress(args.quiet)
    try:
        with progress, Stop(progress) as stop:
            tell_loading(args, progress, config)
            record = tune_search(config, args.path, args.num, args.start, budget, progress, stop)
    except StoppedError:
        progress.say("stopped; nothing was chosen")
        return EXIT_STOPPED
    if args.json:
        print_json(record)
        return 0
    gain, low, high = record["gain"]
    helps = "helps" if record["helps"] else "isn't shown to help, and isn't used"
    print(f"the value {helps}: {gain:+.3f} [{low:+.3f}, {high:+.3f}] over the best without it")
    return 0
