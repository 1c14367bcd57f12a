"""The `prm` command: train a process reward model from trees, spoiled demonstrations or files of step labels."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from ..errors import ConfigError
from .base import EXIT_STOPPED, Stop, add_config_arguments, resolve

if TYPE_CHECKING:
    pass

SMALLEST = 10  # questions


def add_prm(commands: Any) -> None:
    parser = commands.add_parser("prm", help="train a process reward model: is this step right?")
    parser.add_argument("--out", type=Path, default=Path("checkpoints/prm"), metavar="DIR", help="where it goes")
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        metavar="PATH",
        help="journals or folders of runs and samples; JSONL files of step pairs (prompt, prefix, chosen, rejected) or"
        " of PRM800K's records",
    )
    parser.add_argument("--questions", type=int, metavar="N", help="without --data: search so many questions first")
    parser.add_argument("--kind", choices=("implicit", "classifier", "bradley-terry", "all"), help="all: keep the best")
    parser.add_argument("--path", type=Path, metavar="DIR", help="the policy's folder (default: the shipped student)")
    add_config_arguments(parser)

    def run(args: argparse.Namespace) -> int:
        named = {"kind": args.kind, "questions": args.questions}
        given = {key: value for key, value in named.items() if value is not None}
        return run_prm(args, resolve(args, {"train": {"prm": given}}))

    parser.set_defaults(run=run)


def run_prm(args: argparse.Namespace, config: Config) -> int:
    """Train, print the held-out table and write the folder."""
    from ..eval.results import read_json
    from ..policy.prm import CARD
    from ..policy.student import load_student
    from ..problems.prompts import system_prompt
    from ..report.judges import prm_text
    from ..train import prm_data, prm_run
    from ..train.report import Progress
    from ..train.value_run import split_by_question

    if args.data and args.questions is not None:
        raise ConfigError("--questions collects trees and --data names trees: give one of them")
    out: Path = args.out
    if (out / CARD).is_file():
        raise ConfigError(f"--out {out} holds a finished PRM: name another folder or remove it")
    student = load_student(config, path=args.path, system_prompt=system_prompt(config.problems.source))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out} can't be made ({error.strerror}): name a writable folder") from error
    progress, stop, settings = Progress(), Stop(), config.train.prm
    paths = args.data
    if not paths:
        paths = [out]
        if not collect(student, config, out / "journal.jsonl", stop, progress):
            progress.say("stopped; the same command goes on from here")
            return EXIT_STOPPED
    sets = prm_data.read_sets(paths, student, settings)
    if len(sets) < SMALLEST:
        raise ConfigError(f"--data holds {len(sets)} questions with judged steps: give at least {SMALLEST}")
    parts = split_by_question(sets, settings.validation_share, settings.test_share)
    parts[0].extend(prm_data.spoiled_demonstrations(student, config, {judged.text for judged in sets}))
    progress.say(
        f"{settings.kind} over student {student.name}: {len(parts[0]):,} questions to train on, {len(parts[1]):,} to choose"
        f" and calibrate on, {len(parts[2]):,} to report on"
    )
    metrics = out / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    began = time.perf_counter()

    def watch(kind: str, line: dict[str, float]) -> None:
        with metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **line}) + "\n")
        progress.say(
            f"{kind} step {line['step']:.0f}: loss {line['loss']:.4f}; held out: pairs {line['held_out_pairs']:.4f},"
            f" label loss {line['held_out_loss']:.4f}"
        )
        if stop():
            raise KeyboardInterrupt

    trained = prm_run.train_prm(student, config, parts, out, watch)
    facts = {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seconds": round(time.perf_counter() - began, 1),
        "cost": sampled_cost(out / "journal.jsonl"),
    }
    prm_run.save_prm(out, trained, student, config, facts)
    print(prm_text(read_json(out / CARD)))
    print(f"prm.json and metrics.jsonl are in {out}")
    return 0


def collect(student: Any, config: Config, journal: Path, stop: Any, progress: Any) -> bool:
    """Search fresh training questions into `journal`, as the `value` command does; False when the user stopped it."""
    from .value import collect as search

    prm = config.train.prm
    named = {name: getattr(prm, name) for name in ("questions", "iterations", "samples", "temperature")}
    value = config.train.value.model_copy(update=named)
    train = config.train.model_copy(update={"value": value})
    return search(student, config.model_copy(update={"train": train}), journal, stop, progress)


def sampled_cost(journal: Path) -> dict[str, int]:
    """What the trees of the command's own journal cost; nothing where the data came from elsewhere."""
    from ..search.journal import read

    costs = [record.get("cost", {}) for record in read(journal)] if journal.is_file() else []
    names = ("sampled_tokens", "prompt_tokens", "calls")
    return {name: sum(int(cost.get(name, 0)) for cost in costs) for name in names}
