"""The `ladder` command: Base, SFT, PPO, weighted SFT with a PRM, the same with MCTS, over seeds: a table and charts."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from ..config.load import Config, load_config
from ..errors import CheckpointError, ConfigError
from ..eval.names import METHOD_NAMES
from ..eval.verifiers import check_name
from ..files import FolderLock, read_object, write_json, write_whole
from ..live import Progress, Stop
from ..policy.folders import from_scratch, keeps_base
from .base import (
    EXIT_STOPPED,
    add_config_arguments,
    add_json,
    add_model,
    check_least,
    check_out,
    check_resumed,
    print_json,
    resolve,
    tell_loading,
)

RECIPE = "recipe.json"
SECONDS = "seconds.json"  # wall-clock of the sessions that were cut off


def add_ladder(commands: Any) -> None:
    parser = commands.add_parser(
        "ladder",
        help="Base, SFT, PPO, weighted SFT with process credit, that with MCTS: one table over seeds",
        epilog="The recipe is config/ladder.yaml over config/training.yaml; --config and --set change it.",
    )
    add_model(parser)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9], metavar="N", help="one training each")
    parser.option("-n", "--num", type=int, metavar="N", key="ladder.num", help="held-out problems")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="seeds side by side, one thread each")
    parser.add_argument("--out", type=Path, default=Path("checkpoints/ladder"), metavar="DIR", help="where it goes")
    parser.add_argument("--resume", action="store_true", help="go on with --out")
    add_json(parser)
    add_config_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Climb, print the table, write ladder.json, ladder.md, ladder.svg and report.html."""
    config = settled(args)
    with FolderLock(args.out), Progress(args.quiet) as progress:
        tell_loading(args, progress, "PyTorch and TRL", "trl")
        return run_in_folder(args, config, progress)


def run_in_folder(args: argparse.Namespace, config: Config, progress: Progress) -> int:
    """`run` in a folder that is this process's own."""
    out: Path = args.out
    recipe, clock = out / RECIPE, out / SECONDS
    from ..report.folder import write_report
    from ..report.ladder import picture, result_markdown
    from ..training.ladder import LadderStopped, Seed, climb
    from ..training.ladder_report import collect

    write_json(recipe, config.model_dump(mode="json"))
    before = read_object(clock).get("seconds", 0.0) if clock.is_file() else 0.0
    began = time.perf_counter()

    def say(text: str) -> None:
        with saying:  # seeds run side by side
            seconds = before + time.perf_counter() - began
            write_json(clock, {"seconds": seconds})  # now, because a kill gives no warning
            progress.say(f"{seconds / 60:5.1f} min  {text}")

    stop, saying = Stop(), Lock()
    seeds = [Seed(out / f"seed-{seed}", seed, config, recipe, say, stop) for seed in args.seeds]
    for seed, partner in zip(seeds, [*seeds[1:], seeds[0]], strict=True):
        seed.partner = partner if len(seeds) > 1 else None
    progress.wait("climbing")
    try:
        climb(seeds, args.jobs)
    except LadderStopped:
        progress.say(f"stopped; go on with: --resume --out {out}")
        return EXIT_STOPPED
    finally:
        write_json(clock, {"seconds": before + time.perf_counter() - began})
    ladder = collect(seeds, command(args), before + time.perf_counter() - began)
    write_json(out / "ladder.json", ladder)
    text = result_markdown(ladder)
    write_whole(out / "ladder.md", text)
    write_whole(out / "ladder.svg", picture(ladder))
    write_report(out)
    if args.json:
        print_json(ladder)
        return 0
    print(text)
    print(f"ladder.json, ladder.md, ladder.svg and report.html are in {out}")
    return 0


def settled(args: argparse.Namespace) -> Config:
    """The configuration of the ladder to climb or to go on with. Raises ConfigError for flags that can't be."""
    if args.seed is not None:
        raise ConfigError(f"--seed is {args.seed}: the ladder takes several, name them with --seeds")
    check_least(1, jobs=args.jobs)
    check_out(args.out)
    if len(set(args.seeds)) < len(args.seeds):
        raise ConfigError(f"--seeds has {' '.join(map(str, args.seeds))}: name each once")
    recipe = args.out / RECIPE
    config = resolve(args, load=partial(load_config, recipe="ladder.yaml"))
    if args.path is not None:
        raise ConfigError(f"--model {args.path} is a folder: the ladder trains its first student itself, so name one")
    if recipe.is_file() and not args.resume:
        raise ConfigError(
            f"--out {args.out} holds a ladder already: add --resume to go on with it, or name another folder"
        )
    if args.resume:
        if not recipe.is_file():
            raise CheckpointError(f"--resume found no ladder in {args.out}: leave --resume out to start one there")
        stored = load_config(recipe)
        flags = (args.config, args.num, args.model, args.student)
        if args.overrides or any(flag is not None for flag in flags):
            check_resumed(config, stored, recipe)
        config = stored
    check(config)
    return config


def check(config: Config) -> None:
    """Raise ConfigError for what would end the ladder only after its training."""
    ladder = config.ladder
    if config.engine.backend == "vllm-server" and (from_scratch(config) or not keeps_base(config)):
        raise ConfigError(
            "engine.backend is vllm-server, whose servers keep one base, and this ladder's student is trained whole or made"
            " from nothing: set train.adapter=lora and name one that comes with weights (--model), or set"
            " engine.backend=inprocess"
        )
    if ladder.budget_tokens not in ladder.budgets:
        raise ConfigError(
            f"ladder.budget_tokens is {ladder.budget_tokens}: take one of ladder.budgets, {', '.join(map(str, ladder.budgets))}"
        )
    for method in ("greedy", "mcts", *ladder.methods):
        if method not in ladder.methods or method not in METHOD_NAMES:
            raise ConfigError(
                f"ladder.methods is {', '.join(ladder.methods)}: name greedy, mcts and any of {', '.join(METHOD_NAMES)}"
            )
    if not ladder.verifiers:
        raise ConfigError("ladder.verifiers is empty: name at least one, such as calculator")
    for verifier in ladder.verifiers:
        check_name(verifier, Path("prm"), None)  # the ladder trains that PRM
    load_config(None, [config.model_dump(mode="json"), *ladder.ppo_overrides])


def command(args: argparse.Namespace) -> str:
    """The command that gives this table, without where its files went."""
    kept, skip = ["alphazero-llm-trainer ladder"], False
    words = sys.argv[sys.argv.index("ladder") + 1 :] if "ladder" in sys.argv else []
    for word in words:
        if not skip and word not in ("--out", "--resume"):
            kept.append(word)
        skip = word == "--out"
    return " ".join(kept)
