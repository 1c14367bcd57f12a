"""SIGKILL at random moments of every command that keeps a run, and what comes of it beside an undisturbed run's.

    uv run python benchmarks/kill_commands.py --kills 12     # of each command; benchmarks/results/kill_commands.json
    uv run python benchmarks/kill_commands.py --kills 2 --only train eval

Each command runs with the embedded student and tiny sizes: once undisturbed, then in a process that is killed again and again
at random moments, loading included, and started again as its user would. Prints for each command the kills, how many files
came of it, and how many of them differ from the undisturbed run's: weights by the byte, tables but for seconds and for what was
cached. `sample` is killed by `attack.py`, and under Ray by `kill_test.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import provenance  # noqa: E402

os.environ["OMP_NUM_THREADS"] = "1"  # sums in one order

from alphazero_llm_trainer.cli.main import main as command  # noqa: E402

TRAIN = (
    "--num-examples", "24", "--save-every", "8", "--eval-size", "8", "--student", "embedded",
    "--set", "train.questions_per_round=8", "--set", "train.validation_size=8", "--set", "train.rows_per_round=8",
    "--set", "train.demonstrations=20", "--set", "train.ppo.samples=2", "--set", "train.ppo.batch_size=5",
    "--set", "train.ppo.epochs=1", "--set", "train.ppo.rows_per_round=8", "--set", "train.ppo.critic_rounds=1",
    "--set", "train.grpo.batch_size=5", "--set", "train.grpo.epochs=1", "--set", "train.rft.batch_size=5",
    "--set", "train.rft.updates_per_round=3",
)  # fmt: skip
PRM = (
    "--set", "train.prm.iterations=2", "--set", "train.prm.samples=6", "--set", "train.prm.temperature=1.4",
    "--set", "train.prm.spoiled=1", "--set", "train.demonstrations=20", "--set", "train.prm.epochs=1",
    "--set", "train.prm.evaluate_every=5",
)  # fmt: skip
JUDGE = ("--student", "embedded", "--questions", "48")
EVAL = ("--num", "8", "--student", "embedded", "--budget-tokens", "60", "--samples", "2")
LOOP = (
    "--student", "embedded", "--set", "loop.generations=1", "--set", "loop.questions=16", "--set", "loop.arena_size=12",
    "--set", "loop.test_size=8", "--set", "loop.budget_tokens=120", "--set", "train.questions_per_round=8",
    "--set", "train.save_every=8", "--set", "train.validation_size=8", "--set", "train.rows_per_round=8",
    "--set", "train.demonstrations=20", "--set", "train.first_question=3000", "--set", "train.grpo.batch_size=5",
    "--set", "train.grpo.epochs=1", "--set", "train.value.epochs=1", "--set", "train.prm.epochs=1",
)  # fmt: skip
# Each command's words, and those that it is started again with (None: the same).
COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {
    "train": (("train", "--use-grpo", *TRAIN, "--checkpoint-dir"), ("train", "--resume", "--checkpoint-dir")),
    "train --use-rft": (
        ("train", "--use-rft", "--set", "train.groups=verified", *TRAIN, "--checkpoint-dir"),
        ("train", "--resume", "--checkpoint-dir"),
    ),
    "ppo": (("train", "--use-ppo", *TRAIN, "--checkpoint-dir"), ("train", "--resume", "--checkpoint-dir")),
    "eval": (("eval", *EVAL, "--out"), ("eval", *EVAL, "--resume", "--out")),
    "value": (
        ("value", *JUDGE, "--kind", "head", "--set", "train.value.iterations=2", "--set", "train.value.samples=4", "--out"),
        None,
    ),
    "prm": (
        ("prm", *JUDGE, *PRM, "--out"),
        None,
    ),
    "loop": (("loop", *LOOP, "--out"), ("loop", "--resume", "--out")),
}  # fmt: skip


def started(words: tuple[str, ...], out: Path, log: Path) -> int:
    """The process id of a command in a process of its own, where the libraries are loaded already."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    where = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(where, 1)
    os.dup2(where, 2)
    code = 1
    try:
        code = command([*words, str(out)])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int, seconds: float) -> int | None:
    """The exit code of a process, or None where it still runs after so many seconds."""
    until = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.005)


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
    """A table without seconds, hashes of those, and how much was cached."""
    if isinstance(value, dict):
        left = {
            key: one for key, one in value.items() if "seconds" not in key and "cached" not in key and key != "sha256"
        }
        return {key: timeless(one) for key, one in left.items()}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def attacked(name: str, kills: int, rng: Random, scratch: Path) -> dict[str, Any]:
    """Run a command undisturbed, then under `kills` kills, and compare."""
    first, again = COMMANDS[name]
    log, began = scratch / f"{name}.log", time.monotonic()
    code = ended(started(first, scratch / f"{name}-whole", log), 3600)
    seconds = time.monotonic() - began
    if code != 0:
        raise SystemExit(f"{name} undisturbed ended with {code}: {log.read_text()[-2000:]}")
    out, killed, failures = scratch / f"{name}-killed", 0, 0
    while True:
        # `--resume` finds a run once there is one; before, the command is started anew.
        there = any(out.rglob("run.json")) or any(out.rglob("loop.json"))
        pid = started(again if again is not None and there else first, out, log)
        code = ended(pid, rng.uniform(0.0, 0.2 * seconds * (1 + killed / 6)) if killed < kills else 3600)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=12, help="of each command")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kill_commands.json")
    args = parser.parse_args()
    import torch

    import alphazero_llm_trainer.eval.cells
    import alphazero_llm_trainer.policy.student
    import alphazero_llm_trainer.training.loop
    import alphazero_llm_trainer.training.prm_run
    import alphazero_llm_trainer.training.value_run  # noqa: F401 - loaded once, for all processes

    torch.set_num_threads(1)
    rng, rows = Random(args.seed), {}
    with tempfile.TemporaryDirectory(prefix="kill-commands-") as scratch:
        for name in args.only:
            rows[name] = found = attacked(name, args.kills, rng, Path(scratch))
            print(
                f"{name:18}{found['kills']:4} kills {found['failures']:3} failures {found['files']:3} files"
                f" {len(found['differ']):3} differ {found['seconds']:6.0f} s",
                flush=True,
            )
            words = f"python benchmarks/kill_commands.py --kills {args.kills} --seed {args.seed}"
            provenance.write(args.out, "kill_commands", {"command": words, "seed": args.seed, "commands": rows})
    return int(any(row["failures"] or row["differ"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
