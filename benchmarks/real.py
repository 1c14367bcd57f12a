"""A real model on real rows: what it knows, what its own searches teach it, and how it answers at
equal tokens.

    ../shared/models/qwen-coder-0.5b.sh runs/qwen
    uv run python benchmarks/real.py T0 --model runs/qwen
    uv run python benchmarks/real.py T1 --model runs/qwen

Stages are those of PROTOCOL.md. Every step is a command of the package in a process of its own;
what left its last file is not run again and a stopped command goes on, so the same line goes on
after a stop. A stage writes `results/real_STAGE.json`, with the outcome of each problem, as far as
it has come.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import Seed, read, sampled, updates  # noqa: E402

from alphazero_llm_trainer.eval.metrics import mean_interval, paired_bootstrap, wilson  # noqa: E402
from alphazero_llm_trainer.eval.names import UNJUDGED  # noqa: E402
from alphazero_llm_trainer.eval.results import triple  # noqa: E402
from benchmarks import provenance  # noqa: E402

TEST, VALIDATION, SAMPLES = 1319, 500, 8  # rows, rows, answers to a validation row
LONGEST = 400  # tokens of an answer
SHOTS = (0, 4)  # worked solutions before the question

# T1: an arm is three rounds of about 99,000 sampled tokens and 8 updates of 16 rows each, at one
# rate. PROTOCOL.md says how the sizes were chosen.
ROUNDS, RATE = 3, 3e-4
SIZES = [
    "train.optimizer.batch_size=16",
    "train.requeue_limit=0",
    f"train.optimizer.learning_rate={RATE:g}",
]
DRAWN = 200  # validation rows that are answered by eight samples each, too
SFT, UPDATES = "SFT on worked solutions", 8 * ROUNDS
DRAWS = ["search.samples=4", "search.temperature=0.6"]
OWN = ["train.updates_per_round=8", "train.optimizer.epochs=8"]  # until there are 8 updates
GROUPS = ["train.rows_per_round=128", "train.optimizer.epochs=1"]  # GRPO: 8 updates


def rounds(questions: int) -> list[str]:
    """Rounds of so many questions, a checkpoint after each."""
    return [f"train.questions_per_round={questions}", f"train.save_every={questions}"]


ARMS: dict[str, list[str]] = {
    "expert iteration": ["search.simulations=4", *OWN, *rounds(134)],
    "RFT": ["--use-rft", *DRAWS, *OWN, *rounds(102)],
    "GRPO on samples": [
        "--config=grpo_correctness",
        "train.groups=chain",
        "search.samples=8",
        *GROUPS,
        *rounds(50),
    ],
    "GRPO on trees": ["--config=grpo_correctness", *GROUPS, *rounds(36)],
}

CONTROLS = {"expert iteration": "RFT", "GRPO on trees": "GRPO on samples"}

# T2: train questions, those of them that greedy fails, tokens of one.
FIRST, QUESTIONS, FAILED, BUDGET = 3000, 460, 330, 1000

# T3: the tokens of an answer, the judge of all methods, the trees among them, validation rows that
# choose one of those, the test rows of the chosen one and of what it is held against, the test rows
# at smaller caps. "at 0.6" is the temperature of samples, where it isn't 1.
CAP, JUDGE = 1200, "calculator+log-probability"
TREES = ("mcts", "beam")
AGAINST = ("step-rejection", "majority at 0.6", "adaptive-best-of-n at 0.6")
SMALL = ("majority at 0.6", "step-rejection", "best-of-n at 0.6")
CHOOSING, MANY, SOME, CHUNK = 100, 600, 200, 100

Rows = list[dict[str, Any]]


def one_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row is about."""
    return tuple(
        row.get(name)
        for name in ("arm", "seed", "split", "shots", "way", "rule", "method", "budget")
    )


def with_settings(words: Sequence[str]) -> list[str]:
    """KEY=VALUE as `--set KEY=VALUE`; flags as they are."""
    return [word for one in words for word in ((one,) if one.startswith("--") else ("--set", one))]


def answered(
    seed: Seed, name: str, model: Path | str, split: str, num: int, *more: str
) -> dict[str, Any]:
    """`eval` of the first rows of a split; its results. Greedy answers, unless `more` names other
    methods.
    """
    out = seed.folder(name)
    if seed.args.rows is not None:
        num, split = min(num, seed.args.rows), "train"
    words = [
        "eval",
        "--model",
        str(model),
        "--source",
        "gsm8k",
        "--split",
        split,
        "-n",
        str(num),
        "--methods",
        "greedy",
    ]
    words += with_settings(["search.temperature=1"])  # as training draws; `more` may name another
    words += [
        "--budget-tokens",
        str(LONGEST),
        "--out",
        str(out),
        *more,
        *["--resume"] * (out / "run.json").is_file(),
    ]
    seed.stage(name, words, out / "results.json")
    return read(out / "results.json")


def samples(folder: Path) -> dict[str, Any]:
    """How many of each row's samples were right, a digit a row, and the share of rows with right
    and wrong ones.
    """
    counts = [
        sum(map(bool, one))
        for one in read(folder / "cells" / f"gsm8k.samples.{SAMPLES}.json")["correct"]
    ]
    return {
        "right": "".join(map(str, counts)),
        "mixed": triple(mean_interval([float(0 < one < SAMPLES) for one in counts])),
    }


def t0(seed: Seed, keep: Callable[[Rows], None]) -> None:
    """What the published model knows."""
    rows = []
    for shots in seed.args.shots:
        given = with_settings([f"problems.shots={shots}"])
        wide = answered(
            seed, f"validation, {shots} shots", seed.args.model, "validation", VALIDATION, *given,
            "--samples", str(SAMPLES),
        )  # fmt: skip
        drawn = samples(seed.folder(f"validation, {shots} shots"))
        rows.append(
            {
                "split": "validation",
                "shots": shots,
                **wide["rows"][0],
                "at_k": wide["at_k"][0] | drawn,
            }
        )
        keep(rows)
        test = answered(seed, f"test, {shots} shots", seed.args.model, "test", TEST, *given)
        rows.append({"split": "test", "shots": shots, **test["rows"][0]})
        keep(rows)


def published(seed: Seed) -> dict[str, Any]:
    """The model's own row on the test rows, zero-shot, as T0 measured it."""
    if seed.args.rows is not None:
        return answered(seed, "test, published", seed.args.model, "test", TEST)["rows"][0]
    return of_t0("test")


def of_t0(split: str) -> dict[str, Any]:
    """T0's zero-shot row of a split."""
    found = read(ROOT / "benchmarks" / "results" / "real_t0.json")
    row = next(row for row in found["rows"] if row["split"] == split and row["shots"] == 0)
    return {"commit": found["commit"], **row}


@dataclass(frozen=True, slots=True)
class Trained:
    """A student and what it took."""

    student: Path
    training_tokens: int
    updates: int


def trained(seed: Seed, arm: str) -> Trained:
    """An arm's last student."""
    run = seed.folder(arm) / "run-001"
    there = (run / "run.json").is_file()
    words = ["train", "--resume", str(run)]
    if not there:
        words = [
            "train",
            "--out",
            str(run.parent),
            "--model",
            str(seed.args.model),
            "--source",
            "gsm8k",
        ]
        size = next(
            int(one.rpartition("=")[2]) for one in ARMS[arm] if "questions_per_round" in one
        )
        words += [
            "-n",
            str(ROUNDS * size if seed.args.rows is None else seed.args.rows),
            "--eval-size",
            "0",
        ]
        words += with_settings([*ARMS[arm], *SIZES, "train.validation_size=0"])
    seed.stage(arm, words, run / "report.html", configured=not there)
    return Trained(run / "student", sampled(run), updates(run))


def supervised(seed: Seed, arm: str) -> Trained:
    """The ceiling: as many updates on worked solutions, which no arm sees."""
    settings = [
        *SIZES,
        "train.validation_size=16",
        f"train.sft_steps={UPDATES}",
        f"train.evaluate_every={UPDATES}",
    ]
    out = seed.sft(
        arm, "--model", str(seed.args.model), "--source", "gsm8k", *with_settings(settings)
    )
    return Trained(out, 0, UPDATES)


def t1(seed: Seed, keep: Callable[[Rows], None]) -> None:
    """What each way of training from the model's own answers teaches it."""
    base = published(seed)
    rows: Rows = [{"arm": "published", **base}]
    lock = Lock()

    def measured(arm: str) -> Path:
        done = (supervised if arm == SFT else trained)(seed, arm)
        facts = {
            "seed": seed.seed,
            "rate": RATE,
            "training_tokens": done.training_tokens,
            "updates": done.updates,
        }
        row = {
            "arm": arm,
            **facts,
            **answered(seed, f"test, {arm}", done.student, "test", TEST)["rows"][0],
        }
        right, before = ([float(one) for one in found["outcomes"]] for found in (row, base))
        gain = paired_bootstrap(right, before)
        print(f"{arm}: {wilson(int(sum(right)), len(right))}, gain {gain}", flush=True)
        with lock:
            rows.append({**row, "gain": triple(gain)})
            keep(rows)
        return done.student

    arms = seed.args.arms or (*ARMS, SFT)
    with ThreadPoolExecutor(seed.args.jobs) as pool:
        students = list(pool.map(measured, arms))
        samples_of = list(
            pool.map(lambda i: drawn(seed, f"samples, {arms[i]}", students[i]), range(len(arms)))
        )
    by_arm = dict(zip(arms, samples_of, strict=True))
    keep(
        [row | ({"one_sample": by_arm[row["arm"]]} if row["arm"] in by_arm else {}) for row in rows]
    )


def against_controls(rows: Rows) -> None:
    """How much of an arm's right test rows its control lacks, for the arms that have one."""
    by_arm = {(row.get("arm"), row.get("seed")): row for row in rows}
    for row in rows:
        control = (
            by_arm.get((CONTROLS[row["arm"]], row.get("seed")))
            if row.get("arm") in CONTROLS
            else None
        )
        if control is not None:
            right, theirs = ([float(one) for one in found["outcomes"]] for found in (row, control))
            row["less_control"] = triple(paired_bootstrap(right, theirs))


def drawn(seed: Seed, name: str, student: Path) -> dict[str, Any]:
    """How often one of eight samples is right on validation rows that chose nothing, and over the
    published model's there.
    """
    answered(
        seed, name, student, "validation", DRAWN, "--start", str(DRAWN), "--samples", str(SAMPLES)
    )
    counts = [
        samples(seed.folder(name))["right"],
        of_t0("validation")["at_k"]["right"][DRAWN : 2 * DRAWN],
    ]
    now, before = ([int(one) / SAMPLES for one in right] for right in counts)
    found = {"pass@1": triple(mean_interval(now)), "right": counts[0]}
    # A trial answers train rows, which T0 didn't sample.
    return (
        found
        if seed.args.rows is not None
        else found | {"gain": triple(paired_bootstrap(now, before))}
    )


def grown(seed: Seed, name: str, *settings: str) -> dict[int, dict[str, Any]]:
    """The journal of `sample` over the questions of T2, by their place. Ends where one is missing:
    it was set aside.
    """
    out = seed.folder(name)
    done, num = out / "manifest.json", QUESTIONS if seed.args.rows is None else seed.args.rows
    begun = done.is_file() and read(done)["status"] != "complete"
    words = [
        "sample",
        "--config",
        str(ROOT / "config" / "expert_iteration.yaml"),
        "--out",
        str(out),
    ]
    words += [
        "--model",
        str(seed.args.model),
        "--source",
        "gsm8k",
        "-n",
        str(num),
        "--start",
        str(FIRST),
    ]
    words += with_settings([f"search.budget_tokens={BUDGET}", "search.simulations=1000", *settings])
    seed.stage(name, words + ["--resume"] * begun, done, begun=begun)
    lines = (
        json.loads(line)
        for line in (out / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    )
    records = {int(line["key"].rsplit("/", 1)[1]) - FIRST: line for line in lines if "tree" in line}
    if set(records) != set(range(num)):
        raise SystemExit(
            f"{name} lacks {num - len(records)} questions: see {out / 'set_aside.jsonl'}"
        )
    return records


def t2(seed: Seed, keep: Callable[[Rows], None]) -> None:
    """Do trees find right responses to questions that greedy fails, which restarts miss?"""
    rows: Rows = []
    greedy = answered(seed, "greedy", seed.args.model, "train", QUESTIONS, "--start", str(FIRST))[
        "rows"
    ][0]["outcomes"]
    failed = [i for i, right in enumerate(greedy) if right == "0"][:FAILED]
    for rule, least in (("calculator", 0.5), ("none", 0.0)):

        def way_of(
            select: str, rule: str = rule, least: float = least
        ) -> dict[int, dict[str, Any]]:
            settings = f"search.select={select}", f"search.verify.reject_below={least}"
            return grown(seed, f"{'tree' if select == 'puct' else select}, rule {rule}", *settings)

        with ThreadPoolExecutor(seed.args.jobs) as pool:
            ways = dict(
                zip(("tree", "restart"), pool.map(way_of, ("puct", "restart")), strict=True)
            )
        right: dict[str, list[float]] = {}
        for way, records in ways.items():
            taken = [records[i] for i in failed]
            right[way] = [float(1.0 in one["tree"]["hre"]) for one in taken]
            rejected = sum(one["tree"]["verdict"].count("rejected") for one in taken)
            sampled_tokens = sum(one["cost"]["sampled_tokens"] for one in taken)
            facts = {
                "solved": triple(mean_interval(right[way])),
                "sampled_tokens": sampled_tokens / len(taken),
            }
            outcomes = "".join(str(int(one)) for one in right[way])
            row = {"way": way, "rule": rule, "seed": seed.seed, "questions": len(taken), **facts}
            rows.append({**row, "rejected": rejected / len(taken), "outcomes": outcomes})
        rows[-2]["less_restart"] = triple(paired_bootstrap(right["tree"], right["restart"]))
        print(f"rule {rule}: tree less restart {rows[-2]['less_restart']}", flush=True)
        keep(rows)


def methods(
    seed: Seed, split: str, num: int, names: Sequence[str], cap: int
) -> dict[str, dict[str, Any]]:
    """Each method's row over the first `num` rows of a split, measured in chunks, so that a stop
    costs one a job at most.
    """

    def chunk(work: tuple[str, int]) -> dict[str, Any]:
        name, start = work
        method, _, temperature = name.partition(" at ")
        more = ["--start", str(start), "--methods", method, "--budget-tokens", str(cap)]
        more += [] if method in UNJUDGED else ["--verifier", JUDGE]
        more += with_settings([f"search.temperature={temperature}"] if temperature else [])
        size = min(CHUNK, num - start)
        return answered(
            seed, f"{split}, {name}, {cap}, {start}", seed.args.model, split, size, *more
        )["rows"][0]

    if seed.args.rows is not None:
        num = min(num, seed.args.rows)
    work = [(name, start) for start in range(0, num, CHUNK) for name in names]
    with ThreadPoolExecutor(seed.args.jobs) as pool:
        found = list(zip(work, pool.map(chunk, work), strict=True))
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        parts = [row for (other, _), row in found if other == name]
        outcomes = "".join(row["outcomes"] for row in parts)
        facts: dict[str, Any] = {
            column: sum(row[column] * row["problems"] for row in parts) / len(outcomes)
            for column in ("sampled_tokens", "scored_tokens")
        }
        facts |= {"no answer": sum(row["no answer"] for row in parts), "outcomes": outcomes}
        facts |= {"accepted": sum(row["ended_by"].get("accepted", 0) for row in parts)}
        accuracy = triple(wilson(outcomes.count("1"), len(outcomes)))
        rows[name] = {
            "split": split,
            "method": name,
            "budget": cap,
            "seed": seed.seed,
            "problems": len(outcomes),
        }
        rows[name] |= {"accuracy": accuracy, **facts}
    return rows


def held_against(
    tree: Mapping[str, Any], others: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of the others with what the tree method has over each on the same problems, after
    its own.
    """
    right = [float(one) for one in tree["outcomes"]]
    rows = [dict(tree)]
    for row in others.values():
        theirs = [float(one) for one in row["outcomes"]]
        rows.append({**row, "tree_less_it": triple(paired_bootstrap(right, theirs))})
    return rows


def t3(seed: Seed, keep: Callable[[Rows], None]) -> None:
    """The tree method that is best on validation rows against ways of answering without a tree."""
    chosen = methods(seed, "validation", CHOOSING, TREES, CAP)
    keep(list(chosen.values()))
    best = max(TREES, key=lambda name: chosen[name]["accuracy"][0])
    found = methods(seed, "test", MANY, ("majority", best), CAP)
    tree = found.pop(best)
    if seed.args.rows is None:
        greedy = of_t0("test")
        outcomes = greedy["outcomes"][:MANY]
        facts = {
            "split": "test",
            "method": "greedy",
            "budget": LONGEST,
            "seed": seed.seed,
            "problems": MANY,
        }
        facts |= {"accuracy": triple(wilson(outcomes.count("1"), MANY)), "outcomes": outcomes}
        found["greedy"] = {"commit": greedy["commit"], **facts}
    keep(held_against(tree, found))
    for name in AGAINST:
        found |= methods(seed, "test", MANY, (name,), CAP)
        keep(held_against(tree, found))
    for cap in (CAP // 2, CAP // 4):
        [tree], found = methods(seed, "test", SOME, (best,), cap).values(), {}
        for name in SMALL:
            found |= methods(seed, "test", SOME, (name,), cap)
            keep(held_against(tree, found))


STAGES = {"T0": t0, "T1": t1, "T2": t2, "T3": t3}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--model", type=Path, required=True, help="a folder with a chat model")
    parser.add_argument(
        "--shots", nargs="+", type=int, choices=SHOTS, default=SHOTS, help="some of T0's"
    )
    parser.add_argument(
        "--arms", nargs="+", choices=(*ARMS, SFT), help="some of T1's (default: all)"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, one thread each")
    parser.add_argument(
        "--rows",
        type=int,
        help="a trial: so many rows, of train alone, and so many questions an arm",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of every command"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "real")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/real_STAGE.json")
    args = parser.parse_args()
    if args.rows is not None and args.out is None:
        parser.error("--rows is a trial: give --out, a file of its own")
    args.work = args.work.resolve() / (args.stage if args.rows is None else f"{args.stage}-trial")
    out = args.out or ROOT / "benchmarks" / "results" / f"real_{args.stage.lower()}.json"

    def keep(rows: Rows) -> None:
        """Rows of this command after those of earlier ones that it doesn't measure anew; as old as
        its first own row.
        """
        new = [{"commit": provenance.BEGAN["commit"], **row} for row in rows]
        known = read(out)["rows"] if out.is_file() else []
        found = [
            *(row for row in known if all(one_of(row) != one_of(other) for other in new)),
            *new,
        ]
        against_controls(found)
        measured = next(
            (row for row in found if row.get("arm") != "published"), found[0]
        )  # that row is T0's
        facts = {"commit": measured["commit"], "model": args.model.resolve().name, "rows": found}
        provenance.write(out, facts)

    STAGES[args.stage](Seed(args.seed, args), keep)


if __name__ == "__main__":
    main()
