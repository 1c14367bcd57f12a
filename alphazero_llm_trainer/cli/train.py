"""The commands `train`, `grpo`, `ppo`, `legacy`, and `train_vllm.py`: search -> grade -> train in rounds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..live import Progress
from .base import EXIT_STOPPED, Parser, Stop, add_config_arguments, guarded, resolve

METHODS = {
    "grpo": "GRPO on the trees' trajectories: group, tree, step or process credit",
    "ppo": "PPO on sampled chains: outcome reward, a critic, GAE",
    "legacy": "reward-weighted supervised training on the trees' good responses",
}


def train_parser(prog: str, only: str | None = None) -> Parser:
    """The arguments of `train`, or of one training method's own command."""
    about = "Train the student from search trees: search -> grade -> train, in rounds, with checkpoints."
    parser = Parser(
        prog=prog,
        description=about if only is None else f"{METHODS[only]}. As `train` with this method.",
        epilog=(
            "With nothing named it trains the embedded student on embedded word problems (minutes on 2 cores).\n"
            "Real rows: --set problems.source=gsm8k, with ALPHAZERO_DATA_DIR or the hub. Every key: config/training.yaml."
        ),
    )
    parser.add_argument("--num-examples", type=int, metavar="N", help="training questions")
    parser.add_argument(
        "--checkpoint-dir", type=Path, metavar="DIR", help="where run folders go (default: checkpoints)"
    )
    parser.add_argument("--save-every", type=int, metavar="N", help="questions between checkpoints")
    parser.add_argument(
        "--track",
        metavar="KIND",
        help="none | mlflow | wandb | trackio | tensorboard: also keep the run's figures there",
    )
    parser.add_argument("--log-interval", type=int, metavar="N", help="rounds between log lines")
    if only is None:
        method = parser.add_mutually_exclusive_group()
        for name, text in METHODS.items():
            method.add_argument(f"--use-{name}", action="store_const", const=name, dest="method", help=text)
    parser.set_defaults(method=only)
    parser.add_argument(
        "--path", type=Path, metavar="DIR", help="a student folder to start from, such as checkpoints/run-001/student"
    )
    parser.add_argument("--eval-size", type=int, metavar="N", help="held-out problems before and after; 0 for none")
    parser.add_argument(
        "--push-to-hub", metavar="ID", help="upload student/ and adapter/ at the end, as OWNER/NAME (private)"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what the run would do, take, fetch and ask; write and load nothing",
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=None,
        metavar="RUN",
        help="go on with a run folder, or with the newest one of --checkpoint-dir",
    )
    add_config_arguments(parser)
    return parser


def add_train(commands: Any) -> None:
    """`train`, and one command for each training method."""
    train = train_parser("alphazero-llm-trainer train")
    commands.add_parser(
        "train", parents=[train], add_help=False, help="search -> train in rounds", description=train.description
    ).set_defaults(run=run_train)
    for name, text in METHODS.items():
        single = train_parser(f"alphazero-llm-trainer {name}", name)
        commands.add_parser(
            name, parents=[single], add_help=False, help=text, description=single.description
        ).set_defaults(run=run_train)


def train_flags(args: argparse.Namespace) -> dict[str, Any]:
    named = {
        "num_examples": args.num_examples,
        "checkpoint_dir": None if args.checkpoint_dir is None else str(args.checkpoint_dir),
        "save_every": args.save_every,
        "log_interval": args.log_interval,
        "track": args.track,
        "eval_size": args.eval_size,
        "method": args.method,
        "student": None if args.path is None else str(args.path),
        "push_to_hub": args.push_to_hub,
    }
    return {"train": {key: value for key, value in named.items() if value is not None}}


def run_train(args: argparse.Namespace) -> int:
    config = resolve(args, train_flags(args))
    from ..train.run import find_run, new_run
    from .plan import check_start, dry_run

    directory = Path(config.train.checkpoint_dir)
    resume = args.resume is not None
    if resume:
        folder = find_run(directory, None if args.resume is True else Path(args.resume))
        stored = folder.config()
        asked = resolve(args, train_flags(args)).model_dump()
        names = (
            "student",
            "path",
            "config",
            "num_examples",
            "save_every",
            "seed",
            "eval_size",
            "log_interval",
            "track",
            "push_to_hub",
        )
        given = [name for name in names if getattr(args, name) is not None]
        another = args.method not in (None, stored.train.method)
        if another or ((given or args.overrides) and asked != stored.model_dump()):
            raise ConfigError(
                f"--resume goes on with the configuration in {folder.card}, and these flags differ from it: leave them out"
            )
        config = stored
    from ..report.training import result_text

    if resume and "after" in folder.read_card():
        from ..report.folder import write_report

        write_report(folder.path)  # a crash after the last weights may have left none
        print(f"{result_text(folder.read_card(), folder.read_metrics())}\nthis run is finished: {folder.path}")
        return 0
    if args.dry_run:
        if resume:
            print(f"goes on with {folder.path}; what follows is of the whole run")
        return dry_run(config)

    check_start(config)
    from ..train.loop import Run

    progress = Progress()
    run = Run(config, Stop(), progress)
    run.load()
    if not resume:
        folder = new_run(directory)
    progress.say(f"{run.opening()}\nrun folder: {folder.path}")
    card = run.execute(folder, resume)
    if card is None:
        progress.say(f"stopped; go on with: --resume {run.folder.path}")
        return EXIT_STOPPED
    print(result_text(card, run.folder.read_metrics()))
    print(f"student, metrics and report.html are in {run.folder.path}")
    if card.get("uploaded") is not None:
        print(f"uploaded to {card['uploaded']}")
    return 0


def train_main(argv: Sequence[str] | None = None) -> int:
    """`train_vllm.py`, and `vf-eval alphazero-llm-trainer -s -- ...`."""
    parser = train_parser("train_vllm.py")
    return guarded(lambda: run_train(parser.parse_args(argv)))
