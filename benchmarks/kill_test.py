"""Kill -9 of the driver, of search actors and of engine actors at random moments, until every question has its tree.

    python benchmarks/kill_test.py --kills 20 --out benchmarks/results/kill_test.json

It runs `alphazero-llm-trainer sample --workers 2` (Ray on this machine), kills one process after another, resumes the run
whenever its driver was killed, and at the end compares the trees with those of an undisturbed run in one process. It
reads /proc, so it runs on Linux alone, and kills nothing but processes below the driver that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import provenance  # noqa: E402

KINDS = ("driver", "search actor", "engine actor")
TITLES = {"search actor": "ray::SearchHost", "engine actor": "ray::EngineHost"}


def processes() -> dict[int, tuple[int, str]]:
    """pid -> (parent, command line) of everything that runs."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            found[int(entry.name)] = (int(stat.rpartition(")")[2].split()[1]), command)
    return found


def below(root: int) -> dict[int, str]:
    """Command lines of all processes that `root` started, and theirs."""
    everything = processes()

    def descends(pid: int) -> bool:
        while pid in everything:
            pid = everything[pid][0]
            if pid == root:
                return True
        return False

    return {pid: command for pid, (_, command) in everything.items() if descends(pid)}


def actors(root: int, kind: str) -> list[int]:
    """The driver's actors of a kind that are alive."""
    return sorted(pid for pid, command in below(root).items() if command.startswith(TITLES[kind]))


def lines(folder: Path) -> int:
    """Whole records on the disk now."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("shard-*.jsonl"))


def tree_of(record: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on any kill: all but costs; log-probabilities to 3 digits."""
    tree = dict(record["tree"])
    tree["logprobs"] = [[round(value, 3) for value in values] for values in tree["logprobs"]]
    tree["rollouts"] = [[part for i, part in enumerate(rollout) if i != 2] for rollout in tree["rollouts"]]
    tree["prior"] = [None if value is None else round(value, 3) for value in tree["prior"]]
    return {**{key: value for key, value in record.items() if key != "cost"}, "tree": tree}


class Victim:
    """The run under attack."""

    def __init__(self, folder: Path, arguments: list[str], workers: int, log: Path) -> None:
        self.folder, self.log = folder, log
        self.command = [
            sys.executable, "-c", "import sys; from alphazero_llm_trainer.cli.main import main; sys.exit(main())",
            "sample", *arguments, "--workers", str(workers), "--out", str(folder), "--resume",
        ]  # fmt: skip
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)

    def kill(self, kind: str, rng: random.Random) -> bool:
        """SIGKILL one process of this kind; False where there is none now."""
        root = self.process.pid
        pids = [root] if kind == "driver" else actors(root, kind)
        if not pids or self.process.poll() is not None:
            return False
        try:
            os.kill(rng.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return False
        if kind == "driver":
            self.process.wait()
        return True


def attack(victim: Victim, kills: int, rng: random.Random, limit: float) -> list[dict[str, Any]]:
    """Kill until there were enough, then let the run end. Returns every kill: kind, seconds, trees on the disk."""
    began, done = time.monotonic(), []
    # Every kind in turn, in random order, so that each gets its share.
    plan = [kind for _ in range(kills) for kind in rng.sample(KINDS, len(KINDS))][:kills]
    for kind in plan:
        had = lines(victim.folder)
        # Most kills wait for some trees, so that the run goes on; one in four comes at any moment, a restart's included.
        more, until = rng.randrange(1, 12), time.monotonic() + rng.uniform(0, 4)
        patient = rng.random() < 0.75
        while victim.process.poll() is None and time.monotonic() - began < limit:
            ready = lines(victim.folder) >= had + more if patient else time.monotonic() > until
            if ready and victim.kill(kind, rng):
                trees = lines(victim.folder)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--iterations", type=int, default=30, help="expansions a tree: how long one takes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mode", choices=("step", "token"), default="step")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds for the whole attack")
    parser.add_argument("--out", type=Path, help="where the figures go as JSON")
    args = parser.parse_args()
    from alphazero_llm_trainer.mcts.journal import read_shards

    arguments = [
        "--student", "embedded", "--num-examples", str(args.questions), "--start", "2000", "--mode", args.mode,
        "--set", f"train.iterations={args.iterations}", "--set", f"search.iterations={args.iterations}",
        "--set", "train.samples=8", "--set", "train.requeue_limit=0",
        "--set", "sample.shard_trees=50", "--set", "sample.worker_trees=8",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="kill-test-") as scratch:
        folder, calm = Path(scratch) / "attacked", Path(scratch) / "calm"
        folder.mkdir()
        victim = Victim(folder, arguments, args.workers, Path(scratch) / "log.txt")
        began = time.monotonic()
        kills = attack(victim, args.kills, random.Random(args.seed), args.limit)
        seconds = time.monotonic() - began
        if victim.process.returncode != 0:
            print((Path(scratch) / "log.txt").read_text()[-3000:])
            return 1
        keys = Counter(record["key"] for record in read_shards(folder))
        aside = (folder / "set_aside.jsonl").read_text().count("\n")
        whole = all(path.read_bytes().endswith(b"\n") for path in folder.glob("shard-*.jsonl"))
        print("the same questions in one process, undisturbed", flush=True)
        quiet = [*victim.command[:-5], "--out", str(calm)]
        subprocess.run(quiet, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        expected = {record["key"]: tree_of(record) for record in read_shards(calm)}
        same = sum(expected.get(record["key"]) == tree_of(record) for record in read_shards(folder))
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
        "command": f"python benchmarks/kill_test.py --kills {args.kills} --questions {args.questions} --seed {args.seed}"
        f" --iterations {args.iterations} --workers {args.workers} --mode {args.mode}",
        "mode": args.mode,
        "seed": args.seed,
        "each": kills,
    }
    rows = [("kill -9 of", "times"), *((kind, str(counts[kind])) for kind in KINDS)]
    rows += [("all", str(len(kills))), ("", "")]
    names = ("questions", "trees", "lost", "duplicate", "half_written", "set_aside", "same_as_undisturbed", "sessions")
    rows += [(name.replace("_", " "), str(figures[name])) for name in names]
    rows += [("seconds", str(figures["seconds"]))]
    print("\n".join(f"{name:<22}{value:>7}" for name, value in rows))
    if args.out is not None:
        provenance.write(args.out, "kill_test", figures)
    good = status == "complete" and not (figures["lost"] or figures["duplicate"] or figures["half_written"] or aside)
    return 0 if good and same == len(expected) else 1


if __name__ == "__main__":
    sys.exit(main())
