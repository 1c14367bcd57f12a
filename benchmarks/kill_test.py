"""SIGKILL at random moments, and what comes of it beside an undisturbed run's.

    uv run python benchmarks/kill_test.py --kills 20                        # `sample` under Ray; results/kill_test.json
    uv run python benchmarks/kill_test.py --kills 12 --commands train eval  # of each command; results/kill_commands.json

The first runs `sample --workers 2` (Ray on this machine), kills its driver and its workers
one after another, resumes the run whenever its driver was killed, and compares the trees with those of a run in one process.
It kills nothing but processes below the driver that it started.

The second runs each command with the embedded student and tiny sizes: once undisturbed, then in a process that is killed again
and again, loading included, and started again as its user would. Weights are compared by the byte, tables but for seconds and
for what was cached.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from faults import lines_in, trees_in, what_counts, workers  # noqa: E402

from benchmarks import provenance  # noqa: E402

os.environ["OMP_NUM_THREADS"] = "1"  # sums in one order

RESULTS = ROOT / "benchmarks" / "results"
KINDS = ("driver", "worker")
TRAIN = (
    "--num-examples", "24", "--save-every", "8", "--eval-size", "8", "--model", "embedded",
    "--set", "train.questions_per_round=8", "--set", "train.validation_size=8", "--set", "train.rows_per_round=8",
    "--set", "train.demonstrations=20", "--set", "search.samples=2", "--set", "train.critic_rounds=1",
    "--set", "train.optimizer.batch_size=5", "--set", "train.optimizer.epochs=1", "--set", "train.updates_per_round=3",
)  # fmt: skip
EVAL = ("--num", "8", "--model", "embedded", "--budget-tokens", "60", "--samples", "2")
AGAIN = ("train", "--resume", "--checkpoint-dir")
# Each command's words, and those that it is started again with.
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "train": (("train", "--use-grpo", *TRAIN, "--checkpoint-dir"), AGAIN),
    "rft": (("train", "--set", "train.groups=verified", *TRAIN, "--checkpoint-dir"), AGAIN),
    "ppo": (("train", "--use-ppo", *TRAIN, "--checkpoint-dir"), AGAIN),
    "eval": (("eval", *EVAL, "--out"), ("eval", *EVAL, "--resume", "--out")),
}


def launched(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """A command of the package in a process of its own; what it says goes to `log`."""
    with log.open("ab") as heard:
        command = [sys.executable, "-m", "alphazero_llm_trainer", *words]
        return subprocess.Popen(command, cwd=ROOT, stdout=heard, stderr=heard, start_new_session=True)


# -- Ray ---------------------------------------------------------------------------------------------------------------


class Victim:
    """The run under attack."""

    def __init__(self, folder: Path, arguments: list[str], workers: int, log: Path) -> None:
        self.folder, self.log = folder, log
        self.words = ["sample", *arguments, "--workers", str(workers), "--out", str(folder), "--resume"]
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.process = launched(self.words, self.log)

    def kill(self, kind: str, rng: Random) -> bool:
        """SIGKILL one process of this kind; False where there is none now."""
        root = self.process.pid
        pids = [root] if kind == "driver" else workers(root)
        if not pids or self.process.poll() is not None:
            return False
        try:
            os.kill(rng.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return False
        if kind == "driver":
            self.process.wait()
        return True


def attack(victim: Victim, kills: int, rng: Random, limit: float) -> list[dict[str, Any]]:
    """Kill until there were enough, then let the run end. Returns every kill: kind, seconds, trees on the disk."""
    began, done = time.monotonic(), []
    # Every kind in turn, in random order, so that each gets its share.
    plan = [kind for _ in range(kills) for kind in rng.sample(KINDS, len(KINDS))][:kills]
    for kind in plan:
        had = lines_in(victim.folder)
        # Most kills wait for some trees, so that the run goes on; one in four comes at any moment, a restart's included.
        more, until = rng.randrange(1, 12), time.monotonic() + rng.uniform(0, 4)
        patient = rng.random() < 0.75
        while victim.process.poll() is None and time.monotonic() - began < limit:
            ready = lines_in(victim.folder) >= had + more if patient else time.monotonic() > until
            if ready and victim.kill(kind, rng):
                trees = lines_in(victim.folder)
                done.append({"kind": kind, "seconds": round(time.monotonic() - began, 1), "trees": trees})
                print(f"{len(done):>3}. {kind} killed after {done[-1]['seconds']:.0f} s, {trees} trees", flush=True)
                break
            time.sleep(0.02)
        if kind == "driver" and victim.process.returncode == -signal.SIGKILL:
            victim.start()
        elif victim.process.poll() is not None:
            break
    victim.process.wait(timeout=max(limit - (time.monotonic() - began), 60))
    return done


def under_ray(args: argparse.Namespace) -> int:
    """The attack on `sample`; the exit code."""
    from alphazero_llm_trainer.mcts.journal import JOURNAL, read

    arguments = [
        "--model", "embedded", "--num", str(args.questions), "--start", "2000",
        "--set", f"search.simulations={args.simulations}",
        "--set", "search.samples=8", "--set", "train.requeue_limit=0",
        "--set", "search.concurrent=8",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="kill-test-") as scratch:
        folder, calm = Path(scratch) / "attacked", Path(scratch) / "calm"
        folder.mkdir()
        victim = Victim(folder, arguments, args.workers, Path(scratch) / "log.txt")
        began = time.monotonic()
        kills = attack(victim, args.kills, Random(args.seed), args.limit)
        seconds = time.monotonic() - began
        if victim.process.returncode != 0:
            print((Path(scratch) / "log.txt").read_text()[-3000:])
            return 1
        keys = Counter(record["key"] for record in read(folder / JOURNAL))
        aside = (folder / "set_aside.jsonl").read_text().count("\n")
        whole = (folder / JOURNAL).read_bytes().endswith(b"\n")
        print("the same questions in one process, undisturbed", flush=True)
        if launched(["sample", *arguments, "--out", str(calm)], victim.log).wait():
            raise SystemExit(victim.log.read_text()[-3000:])
        expected = {key: what_counts(record) for key, record in trees_in(calm).items()}
        same = sum(expected.get(record["key"]) == what_counts(record) for record in read(folder / JOURNAL))
        status = json.loads((folder / "manifest.json").read_text())["status"]
    counts = Counter(kill["kind"] for kill in kills)
    figures = {
        "kills": {kind: counts[kind] for kind in KINDS},
        "kills_in_all": len(kills),
        "questions": len(expected),
        "trees": sum(keys.values()),
        "lost": len(expected.keys() - keys.keys()),
        "duplicate": sum(count - 1 for count in keys.values()),
        "half_written": 0 if whole else 1,
        "set_aside": aside,
        "same_as_undisturbed": same,
        "status": status,
        "exit_code": victim.process.returncode,
        "sessions": victim.starts,
        "seconds": round(seconds, 1),
        "seed": args.seed,
        "each": kills,
    }
    print("\n".join(f"{name:<22}{value!s:>7}" for name, value in figures.items() if name not in ("each", "command")))
    provenance.write(args.out or RESULTS / "kill_test.json", "kill_test", figures)
    good = status == "complete" and not (figures["lost"] or figures["duplicate"] or figures["half_written"] or aside)
    return 0 if good and same == len(expected) else 1


# -- commands ----------------------------------------------------------------------------------------------------------


def products(folder: Path) -> dict[str, str]:
    """A hash of each file that the run is for: weights as they are, tables without what differs between any two runs."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if any(part.startswith("checkpoint-") for part in path.relative_to(folder).parts):
            continue
        name = re.sub(
            r"^run-\d+", "run", str(path.relative_to(folder))
        )  # a run that was killed at once has a number too
        if path.suffix == ".safetensors":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "results.json":
            found[name] = hashlib.sha256(json.dumps(timeless(json.loads(path.read_text()))).encode()).hexdigest()
    return found


def timeless(value: Any) -> Any:
    """A table without its command, seconds, hashes of those, and how much was cached."""
    if isinstance(value, dict):
        kept = {key for key in value if not re.search("seconds|cached|^(sha256|command)$", key)}
        return {key: timeless(one) for key, one in value.items() if key in kept}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def attacked(name: str, kills: int, rng: Random, scratch: Path) -> dict[str, Any]:
    """Run a command undisturbed, then under `kills` kills, and compare."""
    first, again = COMMANDS[name]
    log, began = scratch / f"{name}.log", time.monotonic()
    code = launched([*first, str(scratch / f"{name}-whole")], log).wait()
    seconds = time.monotonic() - began
    if code != 0:
        raise SystemExit(f"{name} undisturbed ended with {code}: {log.read_text()[-2000:]}")
    out, killed, failures = scratch / f"{name}-killed", 0, 0
    while True:
        # `--resume` finds a run once there is one; before, the command is started anew.
        there = any(out.rglob("run.json"))
        process = launched([*(again if there else first), str(out)], log)
        try:
            code = process.wait(rng.uniform(0.0, 0.4 * seconds * (1 + killed / 6)) if killed < kills else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
            continue
        if code == 0:
            break
        failures += 1
        print(log.read_text()[-1500:])
        if failures > 3:
            break
    whole, found = products(scratch / f"{name}-whole"), products(out)
    differ = sorted(file for file in whole.keys() | found.keys() if whole.get(file) != found.get(file))
    spent = {"seconds": time.monotonic() - began, "undisturbed_seconds": seconds}
    return {"kills": killed, "failures": failures, "files": len(whole), "differ": differ, **spent}


def of_commands(args: argparse.Namespace) -> int:
    """The attack on commands; the exit code."""
    rng, rows = Random(args.seed), {}
    with tempfile.TemporaryDirectory(prefix="kill-commands-") as scratch:
        for name in args.commands:
            rows[name] = found = attacked(name, args.kills, rng, Path(scratch))
            print(
                f"{name:18}{found['kills']:4} kills {found['failures']:3} failures {found['files']:3} files"
                f" {len(found['differ']):3} differ {found['seconds']:6.0f} s",
                flush=True,
            )
            figures = {"seed": args.seed, "commands": rows}
            provenance.write(args.out or RESULTS / "kill_commands.json", "kill_commands", figures)
    return int(any(row["failures"] or row["differ"] for row in rows.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="in all under Ray, of each command with --commands")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, help="kill these instead")
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--simulations", type=int, default=30, help="of a tree: how long one takes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for the whole attack under Ray")
    parser.add_argument("--out", type=Path, help="where the figures go as JSON (default: benchmarks/results)")
    args = parser.parse_args()
    return of_commands(args) if args.commands else under_ray(args)


if __name__ == "__main__":
    sys.exit(main())
