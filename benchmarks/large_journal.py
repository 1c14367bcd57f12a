"""Large journals: memory and time to open, read, export and view them.

    uv run python benchmarks/large_journal.py --megabytes 10 100 1000 --out benchmarks/results/large_journal.json

A few dozen questions are sampled with the embedded student. Their records are then written again and again, each with a key
and a question of its own, by the package's own writer, until the journal is as large as asked for. Each way of using it runs
in a process of its own, whose resident peak and CPU time are read when it ends; `libraries` are those of the same way with a
journal of one record, so that the difference is what the journal takes. Linux only. The journal is removed at the end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.mcts.journal import Journal, read_shards  # noqa: E402
from benchmarks import provenance  # noqa: E402

QUESTIONS, SIMULATIONS = 48, 24
LOOKED_UP = 1000  # records asked for by key once the journal is open


def sample(folder: Path, seed: int) -> None:
    """Real records, by the command that a user would use."""
    command(["sample", "--student", "embedded", "--num", str(QUESTIONS), "--set", f"search.iterations={SIMULATIONS}",
             "--seed", str(seed), "--out", str(folder)])  # fmt: skip


def write(folder: Path, samples: list[dict[str, Any]], size: int) -> int:
    """A journal of about `size` bytes, at least one record; returns how many records it has."""
    journal = Journal(folder / "journal.jsonl")
    journal.path.parent.mkdir(parents=True, exist_ok=True)
    for number, record in enumerate(itertools.cycle(samples)):
        problem = record["problem"]
        fresh = {
            **record,
            "key": f"{number}/{problem['id']}",
            "problem": {**problem, "id": f"{problem['id']}-{number}", "question": f"{problem['question']} ({number})"},
        }
        journal.append(fresh)
        if journal.path.stat().st_size >= size:
            journal.close()
            return number + 1
    raise AssertionError("there are no samples")


# -- ways of using it, each in a process of its own ----------------------------------------------------------------------


def opening(folder: Path) -> None:
    """What `train --resume` does: check every line's hash, then read records by key."""
    journal = Journal(folder / "journal.jsonl")
    keys = list(journal.records)
    for key in random.Random(0).choices(keys, k=LOOKED_UP):
        assert journal.records[key]["key"] == key
    journal.close()


def reading(folder: Path) -> None:
    """`read_trees`, one tree after the other."""
    from alphazero_llm_trainer import read_trees

    assert all(len(tree.tree) for tree in read_trees(folder))


def keeping(folder: Path) -> None:
    """All records at once, as `train --resume` kept them before version 0.6."""
    from alphazero_llm_trainer.mcts.journal import read

    assert {record["key"]: record for record in read(folder / "journal.jsonl")}


def exporting(folder: Path) -> None:
    """`export`, a table of value targets."""
    command(["export", "--data", str(folder), "--kind", "value", "--out", str(folder / "value.parquet")])


def viewing(folder: Path) -> None:
    """`view`: the list's page."""
    command(["view", str(folder), "--out", str(folder / "trees.html")])


def command(arguments: list[str]) -> None:
    from alphazero_llm_trainer.cli.main import main

    if main(arguments):
        raise SystemExit(f"{arguments[0]} failed")


WAYS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "open": (f"open for `train --resume`, and read {LOOKED_UP:,} records by key", opening),
    "read": ("`read_trees`, one tree after the other", reading),
    "export": ("`export --kind value`", exporting),
    "view": ("`view`, the page of the list", viewing),
    "keep": ("every record in memory, as before", keeping),
}


QUICK = ("open", "read")  # tried with journals of every size
IN_MEMORY = 100  # megabytes; above this `keep` is not tried, which needs about six times the journal in memory


def measured(way: str, folder: Path) -> dict[str, float]:
    """Run a way in a process of its own: its peak of resident memory in MiB, and its CPU seconds."""
    run = [sys.executable, str(Path(__file__).resolve()), "--way", way, "--folder", str(folder)]
    found = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(found.splitlines()[-1]))


def one_way(way: str, folder: Path) -> None:
    began = time.process_time()
    WAYS[way][1](folder)
    seconds = time.process_time() - began
    # The kernel's own mark: getrusage's would be no less than what this process's parent held when it was forked.
    [peak] = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line]
    print(json.dumps({"peak_mib": round(int(peak) / 1024, 1), "cpu_seconds": round(seconds, 2)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--most", type=int, default=1000, help="megabytes up to which it is exported and viewed too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        return one_way(args.way, args.folder)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        sample(root / "sample", args.seed)
        samples = list(read_shards(root / "sample"))
        write(root / "one", samples, 1)
        libraries = {way: measured(way, root / "one") for way in WAYS}
        sizes = []
        for megabytes in args.megabytes:
            began, folder = time.process_time(), root / "large"
            records = write(folder, samples, megabytes * 10**6)
            line: dict[str, Any] = {
                "megabytes": megabytes,
                "records": records,
                "write_cpu_seconds": round(time.process_time() - began, 2),
                "ways": {},
            }
            for way in WAYS:
                most = IN_MEMORY if way == "keep" else args.most
                if way in QUICK or megabytes <= most:
                    line["ways"][way] = measured(way, folder)
                    print(f"{megabytes:>6} MB, {records:,} records  {way:<16}{line['ways'][way]}", flush=True)
            if (page := folder / "trees.html").exists():
                line["page_mb"] = round(page.stat().st_size / 1e6, 1)
            sizes.append(line)
            for file in folder.iterdir():
                file.unlink()
            if args.out:
                sizes_asked = " ".join(map(str, args.megabytes))
                facts = {
                    "command": f"uv run python benchmarks/large_journal.py --megabytes {sizes_asked} --most {args.most}",
                    "seed": args.seed,
                    "questions": QUESTIONS,
                    "simulations": SIMULATIONS,
                    "ways": {way: what for way, (what, _) in WAYS.items()},
                    "libraries": libraries,
                    "sizes": sizes,
                }
                provenance.write(args.out, "large_journal", facts)


if __name__ == "__main__":
    main()
