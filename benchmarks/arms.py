"""What `improvement.py` and `from_rules.py` share: arms of training from one student at equal tokens, over seeds.

An arm is a run of `train` in a process of its own. A finished run is kept in the work folder, a stopped one goes on. All are
trained before a test problem is read. Then each last student is measured on test problems that no arm has seen, and the arm
`search` is compared with each other one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer import __version__  # noqa: E402
from alphazero_llm_trainer.eval.metrics import Interval, bootstrap_over_seeds, repeats, wilson  # noqa: E402
from alphazero_llm_trainer.types import Task  # noqa: E402
from benchmarks import provenance  # noqa: E402

BASE = "search"  # the arm that the others are compared with
CHECKPOINTS = 12  # at most, of a run


@dataclass(frozen=True, slots=True)
class Arm:
    """Options of `train`, its questions, and how many of them make a round."""

    flags: str
    questions: int
    of_round: int


@dataclass(frozen=True, slots=True)
class Study:
    """What is compared: `kinds` are the figures that `measure` gives for a student's folder (None: the shipped one).

    `start` is the command that makes the student which all arms start from, None for the shipped one. `facts` go into the
    JSON as they are; `options` are the study's own (name, default, help), which `measure` gets.
    """

    script: str
    about: str
    arms: Mapping[str, Arm]
    common: Sequence[str]
    kinds: tuple[str, ...]
    validation: int
    tasks: Callable[[int, int], list[Task]]  # count, first
    measure: Callable[[Path | None, list[Task], argparse.Namespace], dict[str, str]]
    start: str | None = None
    apart: int = 0  # questions between two checkpoints, at least
    facts: Mapping[str, Any] = field(default_factory=dict)
    options: Sequence[tuple[str, int, str]] = ()
    others: Mapping[str, Callable[[int, int], list[Task]]] = field(default_factory=dict)  # kinds with own test problems
    count: Callable[[list[Task]], int] | None = None  # what `structures` of a kind's test problems says in the JSON


def run(study: Study) -> None:
    """The command of a study: train, measure, compare, write JSON."""
    import torch

    name = Path(study.script).stem
    parser = argparse.ArgumentParser(description=study.about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--arms", nargs="+", default=[*study.arms], choices=[*study.arms], metavar="ARM")
    parser.add_argument("--first", type=int, default=1000, help="number of the first test problem")
    parser.add_argument("--num", type=int, default=1000, help="test problems")
    for option, default, text in study.options:
        parser.add_argument(f"--{option}", type=int, default=default, help=text)
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side, one thread each")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / name)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{name}.json")
    parser.add_argument(
        "--add", action="store_true", help="keep the arms of --out that are not named, of the same problems"
    )
    parser.add_argument("--train-only", action="store_true", help="train, and leave the test problems unread")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.measure is not None:
        folder = Path(args.measure) if args.measure else None
        args.out.write_text(json.dumps(study.measure(folder, study.tasks(args.num, args.first), args)))
        return
    start = None if study.start is None else args.work / "start"
    if start is not None and not (start / "manifest.json").exists():
        program([*shlex.split(study.start or ""), "--out", str(start)], quiet=False)

    earlier = kept(study, args) if args.add else {}

    def trained(job: tuple[str, int]) -> dict[str, Any]:
        row = train(study, *job, args.work, start)
        print(
            f"seed {row['seed']}, {row['arm']:17} {row['training_seconds']:5.0f} s, {row['sampled_tokens']:9,} tokens,"
            f" {row['curve'][-1][1]:.3f} on validation problems",
            flush=True,
        )
        return row

    def tested(row: dict[str, Any]) -> dict[str, Any]:
        return row | measured(study, run_folder(args.work, row["arm"], row["seed"]) / "student", args)

    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(trained, [(arm, seed) for seed in args.seeds for arm in args.arms]))
        if args.train_only:
            return
        rows = list(pool.map(tested, rows))
    report(study, rows, measured(study, start, args), args, earlier)


def kept(study: Study, args: argparse.Namespace) -> dict[str, Any]:
    """What --out holds, with the runs of arms that are not named; seeds and test problems have to be these ones."""
    found = json.loads(args.out.read_text())
    asked = {"seeds": args.seeds, "first": args.first, "problems": args.num}
    asked |= {option: getattr(args, option) for option, _, _ in study.options}
    if any(found[name] != value for name, value in asked.items()):
        raise SystemExit(f"{args.out} was measured in another way than {asked}: leave out --add")
    runs = [row for row in found["runs"] if row["arm"] in study.arms and row["arm"] not in args.arms]
    return found | {"runs": runs}


def train(study: Study, name: str, seed: int, work: Path, start: Path | None) -> dict[str, Any]:
    """One training run as a row; its curve is in `curve`."""
    arm = study.arms[name]
    every = max(study.apart, arm.of_round * math.ceil(arm.questions / arm.of_round / CHECKPOINTS))
    command = ["train", *study.common, *arm.flags.split(), "-n", str(arm.questions), "--seed", str(seed)]
    command += ["--set", f"train.questions_per_round={arm.of_round}", "--save-every", str(every), "--eval-size", "0"]
    folder = run_folder(work, name, seed)
    if not (folder / "run.json").exists():
        place = ["--checkpoint-dir", str(folder.parent)]
        program([*command, *place, *(() if start is None else ("--set", f"train.student={start}"))])
    elif "seconds" not in json.loads((folder / "run.json").read_text()):
        program(["train", "--resume", str(folder)])
    card = json.loads((folder / "run.json").read_text())
    return {
        "arm": name,
        "seed": seed,
        "command": shlex.join(["alphazero-llm-trainer", *command]),
        "kept": card["kept"],
        "questions": card["questions"],
        "sampled_tokens": card["search_cost"]["sampled_tokens"],
        "training_seconds": card["seconds"]["training"],
        "curve": curve(folder),
    }


def run_folder(work: Path, arm: str, seed: int) -> Path:
    return work / f"{arm} {seed}".replace(", ", "-").replace(" ", "-") / "run-001"


def curve(folder: Path) -> list[list[float]]:
    """(tokens sampled so far, greedy accuracy on validation problems) after each checkpoint."""
    tokens, points = 0, []
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        tokens += found.get("cost", {}).get("sampled_tokens", 0)
        if "validation_accuracy" in found:
            points.append([tokens, found["validation_accuracy"]])
    return points


def measured(study: Study, folder: Path | None, args: argparse.Namespace) -> dict[str, str]:
    """`Study.measure` in a process of its own, kept in a file of the work folder."""
    name = "shipped" if folder is None else "-".join(folder.relative_to(args.work).parts[:1])
    kept = args.work / f"{name}-{args.first}.json"
    if not kept.exists():
        command = [sys.executable, str(ROOT / study.script), "--measure", str(folder or ""), "--out", str(kept)]
        command += ["--work", str(args.work), "--first", str(args.first), "--num", str(args.num)]
        for option, _, _ in study.options:
            command += [f"--{option}", str(getattr(args, option))]
        subprocess.run(command, check=True, env=environment(), stdout=subprocess.DEVNULL)
    found: dict[str, str] = json.loads(kept.read_text())
    if len(found["greedy"]) != args.num:
        raise SystemExit(f"{kept} holds {len(found['greedy'])} problems and --num is {args.num}: remove it")
    return found


def report(
    study: Study,
    rows: list[dict[str, Any]],
    before: Mapping[str, str],
    args: argparse.Namespace,
    earlier: Mapping[str, Any],
) -> None:
    """The table, and everything as JSON.

    `earlier` is a JSON whose runs are kept: the file is then as old as they are. Ends the program where they went on from
    another start.
    """
    rows = [*rows, *earlier.get("runs", ())]
    problems = {kind: study.others.get(kind, study.tasks)(args.num, args.first) for kind in study.kinds}
    groups = {kind: repeats(tasks) for kind, tasks in problems.items()}
    distinct = {kind: len(set(found)) for kind, found in groups.items()}
    start = {kind: triple(wilson(before[kind].count("1"), args.num, distinct[kind])) for kind in study.kinds}
    if earlier.get("start", start) != start:
        raise SystemExit(
            f"the arms in {args.out} went on from another start (made on another machine?): leave out --add"
        )
    arms = [arm for arm in study.arms if any(row["arm"] == arm for row in rows)]
    summary = compared(rows, arms, before, groups)
    for row in summary:
        figures = " ".join(f"{kind} {row[kind][0]:.3f}" for kind in study.kinds)
        print(f"{row['arm']:17} {figures} {row.get('primary', '')}", flush=True)
    own = [f"--{option} {getattr(args, option)}" for option, _, _ in study.options]
    result = {
        "command": f"uv run python {study.script} --seeds {' '.join(map(str, args.seeds))} --arms {shlex.join(args.arms)}"
        f" --first {args.first} --num {args.num} {' '.join([*own, f'--jobs {args.jobs}', *(['--add'] if args.add else [])])}",
        "version": __version__,
        "start": start,
        "start_right": before,
        "seeds": args.seeds,
        "first": args.first,
        "problems": args.num,
        "distinct": distinct["greedy"],
        **({"distinct_by_kind": distinct} if study.others else {}),
        **({"structures": {kind: study.count(tasks) for kind, tasks in problems.items()}} if study.count else {}),
        "validation_problems": study.validation,
        **study.facts,
        **{option: getattr(args, option) for option, _, _ in study.options},
        "summary": summary,
        "runs": rows,
        **{key: earlier[key] for key in provenance.BEGAN if key in earlier},
    }
    provenance.write(args.out, Path(study.script).stem, result)


def compared(
    rows: Sequence[dict[str, Any]], arms: Sequence[str], before: Mapping[str, str], groups: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """Each arm's accuracy over problems and seeds, its gain, and the arm `search` less it.

    `groups` has for each kind which problems are the same; `primary` holds at 95% for all arms together.
    """
    found = {
        (arm, kind): [[float(one) for one in row[kind]] for row in rows if row["arm"] == arm]
        for arm in arms
        for kind in groups
    }
    together = 1 - 0.05 / max(len(arms) - 1, 1)
    summary = []
    for arm in arms:
        mine = [row for row in rows if row["arm"] == arm]
        row: dict[str, Any] = {"arm": arm, "tokens": sum(one["sampled_tokens"] for one in mine) // len(mine)}
        other = arm != BASE and BASE in arms
        for kind, same in groups.items():
            row[f"{kind}_by_seed"] = [sum(one) / len(one) for one in found[arm, kind]]
            row[kind] = triple(bootstrap_over_seeds(found[arm, kind], [[0.0] * len(same)], groups=same))
            start = [[float(one) for one in before[kind]]]
            row[f"{kind}_gain"] = triple(bootstrap_over_seeds(found[arm, kind], start, groups=same))
            if other:
                over = bootstrap_over_seeds(found[BASE, kind], found[arm, kind], groups=same)
                row[f"search_minus_{kind}"] = triple(over)
        if other:
            both = found[BASE, "greedy"], found[arm, "greedy"]
            row["primary"] = triple(bootstrap_over_seeds(*both, confidence=together, groups=groups["greedy"]))
        summary.append(row)
    return summary


def environment() -> dict[str, str]:
    """One thread an arm, so that two of them side by side don't disturb each other."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def program(command: Sequence[str], quiet: bool = True) -> None:
    sink = subprocess.DEVNULL if quiet else None
    command = [sys.executable, "-m", "alphazero_llm_trainer", *command]
    subprocess.run(command, cwd=ROOT, check=True, env=environment(), stdout=sink, stderr=sink)


def written(right: Sequence[bool]) -> str:
    return "".join("1" if one else "0" for one in right)


def triple(found: Interval) -> list[float]:
    return [found.value, found.low, found.high]
