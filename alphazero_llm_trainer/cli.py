"""Command lines: `alphazero-llm-trainer train | sft | search | sample | export | info`, and `train_vllm.py`."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .config import Config, load_config
from .errors import EXIT_USER_ERROR, AlphaZeroError, ConfigError

EXIT_STOPPED = 130


class Parser(argparse.ArgumentParser):
    """argparse with this project's error policy: one sentence, exit code 2."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message}: see {self.prog} --help\n")
        raise SystemExit(EXIT_USER_ERROR)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--student", metavar="NAME", help="a student of config/models.yaml, or auto")
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML with some of config/training.yaml's keys")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help="override one key; repeatable"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="seed of everything random")


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


def resolve(args: argparse.Namespace, extra: dict[str, Any] | None = None) -> Config:
    """The configuration of parsed arguments; flags win over `--set`, `--set` over `--config`."""
    flags: dict[str, Any] = {}
    if args.student is not None:
        flags["student"] = args.student
    if args.seed is not None:
        flags["seed"] = args.seed
    return load_config(args.config, [*args.overrides, flags, extra or {}])


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
    from .plan_command import check_start, dry_run
    from .train.run import find_run, new_run

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
    from .report.training import result_text
    from .train.report import Progress

    if resume and "after" in folder.read_card():
        from .report.folder import write_report

        write_report(folder.path)  # a crash after the last weights may have left none
        print(f"{result_text(folder.read_card(), folder.read_metrics())}\nthis run is finished: {folder.path}")
        return 0
    if args.dry_run:
        if resume:
            print(f"goes on with {folder.path}; what follows is of the whole run")
        return dry_run(config)

    check_start(config)
    from .train.loop import Run

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
    print(f"kept: {card['kept']}; student, metrics and report.html are in {run.folder.path}")
    if card.get("uploaded") is not None:
        print(f"uploaded to {card['uploaded']}")
    return 0


class Stop:
    """Ctrl-C once asks the run to end at the next safe place; twice ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        self.previous = signal.signal(signal.SIGINT, self.handle)

    def handle(self, number: int, frame: Any) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self.previous)
        sys.stderr.write("\nending at the next safe place; Ctrl-C again ends at once\n")

    def __call__(self) -> bool:
        return self.asked


def train_main(argv: Sequence[str] | None = None) -> int:
    """`train_vllm.py`, and `vf-eval alphazero-llm-trainer -s -- ...`."""
    parser = train_parser("train_vllm.py")
    return guarded(lambda: run_train(parser.parse_args(argv)))


def guarded(command: Callable[[], int]) -> int:
    """Run a command; an error the user can fix is one sentence and exit code 2."""
    # transformers' trainer imports it before our own modules can: it tells of kernels that a CPU could have.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        return command()
    except AlphaZeroError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return EXIT_STOPPED


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `alphazero-llm-trainer`."""
    parser = Parser(prog="alphazero-llm-trainer", description="AlphaZero for language-model reasoning.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    from .commands import add_info, add_search, add_sft
    from .eval_command import add_eval
    from .export_command import add_export
    from .grading_command import add_grade
    from .ladder_command import add_ladder
    from .loop_command import add_loop
    from .merge_command import add_merge
    from .prm_command import add_prm
    from .report_command import add_compare, add_report
    from .sample_command import add_sample
    from .serve_command import add_serve
    from .value_command import add_value
    from .view_command import add_view

    train = train_parser("alphazero-llm-trainer train")
    commands.add_parser(
        "train", parents=[train], add_help=False, help="search -> train in rounds", description=train.description
    ).set_defaults(run=run_train)
    for name, text in METHODS.items():
        one = train_parser(f"alphazero-llm-trainer {name}", name)
        commands.add_parser(name, parents=[one], add_help=False, help=text, description=one.description).set_defaults(
            run=run_train
        )
    add_sft(commands, add_config_arguments, resolve)
    add_search(commands, add_config_arguments, resolve)
    add_sample(commands, add_config_arguments, resolve)
    add_export(commands)
    add_view(commands)
    add_value(commands, add_config_arguments, resolve)
    add_prm(commands, add_config_arguments, resolve)
    add_eval(commands, add_config_arguments, resolve)
    add_ladder(commands, add_config_arguments)
    add_loop(commands, add_config_arguments, resolve)
    add_merge(commands, add_config_arguments, resolve)
    add_serve(commands, add_config_arguments, resolve)
    add_grade(commands, add_config_arguments, resolve)
    add_report(commands)
    add_compare(commands)
    add_info(commands, add_config_arguments, resolve)
    args = parser.parse_args(argv)
    return guarded(lambda: args.run(args))
