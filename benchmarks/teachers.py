"""What is a teacher worth? Its steps in training trees against none, at equal tokens of the student and of both.

    uv run python benchmarks/teachers.py --work checkpoints/teachers

The teacher is a larger student of the embedded problems that has learnt from 10,000 worked solutions (`teachers.yaml`); `serve`
offers it over the OpenAI protocol, and it continues the student's steps. The student is the shipped one. `arms.py` says how
stages are run. All arms take questions that neither has seen:

- trees, teacher: UCB1 trees, 3 simulations of 4 continuations; at each expansion the teacher proposes one step that the student
  goes on from. The student is trained on right responses. Its tokens and updates are what the others get;
- trees, failing: the teacher is asked only where none of the student's own continuations earned half;
- trees, equal student tokens: no teacher, as many tokens of the student;
- trees, equal total tokens: no teacher, as many tokens of the student as both sampled;
- teacher alone: the teacher's own right samples, one a question, of as many tokens as both sampled: distillation;
- student alone: the student's own samples, one a question, of as many tokens as both sampled: what so many questions bring;
- grpo: trees without a teacher, with one whose responses are no rows, and with one whose responses are (`train.teacher_rows`);
- replay alone: the demonstrations that all arms replay, and no new question.

Primary, written down before the test problems were read (PROTOCOL.md): greedy accuracy of `trees, teacher` less `trees, equal
total tokens`, over problems and seeds. All else are observations with intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import (  # noqa: E402
    REPLAY,
    Arm,
    Seed,
    figures,
    groups,
    less,
    options,
    outcomes,
    read,
    sampled,
    updates,
)

from alphazero_llm_trainer.problems.load import tasks_of  # noqa: E402
from benchmarks import provenance  # noqa: E402

STUDENT = ROOT / "alphazero_llm_trainer" / "assets" / "student"
CONFIG = ROOT / "benchmarks" / "teachers.yaml"
SOLUTIONS, STEPS = 10_000, 4000  # that the teacher learns from, and its updates
OF_ROUND, REPLAYED = 96, 0.2  # questions of a round; the share of demonstrations in an update
A_SAMPLE, WITHOUT = 23, 0.88  # tokens of a response; of a tree without a teacher against one with, on train questions
FIRST = f"train.first_question={SOLUTIONS}"  # after the student's own demonstrations: the teacher has seen those before
TREES = (
    f"train.questions_per_round={OF_ROUND} train.save_every=960 train.groups=tree search.simulations=3 search.samples=4"
    f" train.requeue_limit=0 rewards.pre_weight=0 {FIRST}"
)
ALONE_TOO = (
    f"train.questions_per_round={12 * OF_ROUND} train.save_every=11520 train.groups=chain search.samples=1"
    f" train.requeue_limit=0 rewards.pre_weight=0 {FIRST}"
)
TAUGHT = "teachers.tier=local teachers.ask=always"
BASE, CONTROL, ALONE, UNTAUGHT = "trees, teacher", "trees, equal total tokens", "teacher alone", "grpo, trees"
# Each with the tokens of the student that it takes: those of the reference's student, or of both.
SUPERVISED = {
    "trees, failing": (Arm("rft", f"{TREES} {TAUGHT} teachers.ask=failing", responses=12), "student"),
    "trees, equal student tokens": (Arm("rft", TREES, responses=12), "student"),
    CONTROL: (Arm("rft", TREES, responses=12), "both"),
    "student alone": (Arm("rft", ALONE_TOO), "both"),
}
GRPO = {
    UNTAUGHT: Arm("grpo", TREES, rows=4 * OF_ROUND),
    "grpo, teacher, own rows": Arm("grpo", f"{TREES} {TAUGHT}", rows=4 * OF_ROUND),
    "grpo, teacher, all rows": Arm("grpo", f"{TREES} {TAUGHT} train.teacher_rows=true", rows=4 * OF_ROUND),
}
NAMES = (BASE, *SUPERVISED, ALONE, *GRPO, REPLAY)


def taught(run: Path) -> int:
    """Tokens that a run's teacher sampled."""
    ledgers: dict[str, Any] = read(run / "run.json").get("teachers") or {}
    return sum(ledger["cost"]["sampled_tokens"] for ledger in ledgers.values())


@contextmanager
def served(teacher: Path, log: Path) -> Iterator[None]:
    """The teacher behind the OpenAI API."""
    words = ["serve", "--model", str(teacher), "--port", "8077", "--set", "serve.queue=2000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "alphazero_llm_trainer", *words], env=environment, stdout=output, stderr=output
        )
    try:
        for _ in range(120):
            time.sleep(0.5)
            if process.poll() is not None:
                raise SystemExit(f"the teacher's server ended with {process.returncode}: see {log}")
            try:
                if httpx.get("http://127.0.0.1:8077/health").status_code == 200:
                    break
            except httpx.HTTPError:
                continue
        else:
            raise SystemExit(f"the teacher's server doesn't answer: see {log}")
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def alone(seed: Seed, teacher: Path, tokens: int, steps: int) -> Path:
    """The student after `steps` updates on the teacher's own right samples, so many tokens of them, and demonstrations."""
    config = seed.loaded()
    trees, table, rows = (seed.folder(f"alone {what}") for what in ("samples", "table.parquet", "rows.jsonl"))
    if not table.exists():
        first = config.train.demonstrations + SOLUTIONS
        words = ["sample", "--model", str(teacher), "--start", str(first), "-n", str(tokens // A_SAMPLE)]
        for one in ("search.samples=1", "train.groups=chain", "train.requeue_limit=0"):
            words += ["--set", one]
        words += ["--out", str(trees), *["--resume"] * trees.exists()]
        seed.stage("alone samples", words, trees / "manifest.json", begun=True)
        words = ["export", "--data", str(trees), "--kind", "sft", "--out", str(table)]
        seed.stage("alone table", words, table, configured=False)
    found = [(row["question"], row["completion"]) for row in pq.read_table(table).to_pylist()]
    right = [(question, text) for question, text in found if "####" in text]
    worked = tasks_of(config, "train", config.train.demonstrations)
    worked = worked[: round(len(right) * REPLAYED / (1 - REPLAYED))]
    with rows.open("w", encoding="utf-8") as out:
        for split, pairs in (
            ("train", [*right, *((task.problem.question, task.solution) for task in worked)]),
            ("validation", [(t.problem.question, t.solution) for t in tasks_of(config, "validation", 300)]),
        ):
            for question, solution in pairs:
                answer = solution.rsplit("####", 1)[1].strip()
                line = {"question": question, "answer": answer, "solution": solution, "split": split}
                out.write(json.dumps(line) + "\n")
    given = [f"train.sft.steps={steps}", "train.optimizer.learning_rate=5e-4", f"train.demonstrations={len(right)}"]
    return seed.sft(
        ALONE, "--model", str(STUDENT), "--source", str(rows), *(w for one in given for w in ("--set", one))
    )


def train(seed: Seed, name: str, arm: Arm, questions: int, steps: float | None = None) -> Path:
    of_round = 12 * OF_ROUND if arm.settings == ALONE_TOO else OF_ROUND
    seed.args = argparse.Namespace(**{**vars(seed.args), "of_round": of_round})
    settings = [] if steps is None else seed.as_many(arm, questions, round(steps))
    return seed.train(name, arm, ("--model", str(STUDENT)), questions, settings)


def stages(seed: Seed, teacher: Path) -> None:
    """All of one seed."""
    args = seed.args
    first = train(seed, BASE, Arm("rft", f"{TREES} {TAUGHT}"), args.questions)
    own, steps = sampled(first), updates(first)
    spent = {"student": own, "both": own + taught(first)}
    a_question = (
        own / args.questions
    )  # tokens of the student; the same without a teacher but for rollouts after its steps
    for name, (arm, tokens) in SUPERVISED.items():
        questions = round(spent[tokens] / (a_question * WITHOUT))
        if name == "student alone":
            questions = spent[tokens] // A_SAMPLE
        train(seed, name, arm, questions, steps)
    alone(seed, teacher, spent["both"], steps)
    for name, arm in GRPO.items():
        share = WITHOUT if name == UNTAUGHT else 1.0
        train(seed, name, arm, round(own / (a_question * share)), steps)
    given = ("train.optimizer.learning_rate=5e-4", f"train.sft.steps={steps}", "train.optimizer.batch_size=20")
    seed.sft(REPLAY, "--model", str(STUDENT), *(word for one in given for word in ("--set", one)))
    if not args.train_only:
        seed.evaluate("start", STUDENT, ["greedy"])
        seed.evaluate("the teacher", teacher, ["greedy"])
        for name in NAMES:
            run = seed.folder(name)
            seed.evaluate(name, run / "run-001" / "student" if (run / "run-001").exists() else run, ["greedy"])


def drawn_tokens(folder: Path) -> int:
    """Tokens of a folder of `sample`."""
    lines = (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(json.loads(line)["cost"]["sampled_tokens"] for line in lines)


def ledger(run: Path) -> dict[str, Any]:
    """What the teacher of a run did."""
    found: dict[str, Any] = read(run / "run.json")["teachers"].get("student", {})
    return found


def table(seeds: Sequence[Seed]) -> dict[str, Any]:
    """Each arm over problems and seeds, its gain, and `trees, teacher` less it."""
    same = groups(seeds[0])
    start, summary = figures(seeds, "start", same), []
    for arm in NAMES:
        row = figures(seeds, arm, same)
        runs = [seed.folder(arm) / "run-001" for seed in seeds]
        found = {"arm": arm, "tokens": row["training_tokens"], "updates": row["updates"], "teacher_tokens": 0}
        if runs[0].exists():
            found["teacher_tokens"] = sum(map(taught, runs)) // len(runs)
            found["teacher"] = [ledger(run) for run in runs]
        if arm == ALONE:
            drawn = sum(drawn_tokens(seed.folder("alone samples")) for seed in seeds)
            found["teacher_tokens"] = drawn // len(seeds)
        found |= {"greedy": row["accuracy"], "greedy_by_seed": row["by_seed"], "outcomes": row["outcomes"]}
        found["greedy_gain"] = less(outcomes(seeds, arm), outcomes(seeds, "start"), same)
        if arm != BASE:
            found["teacher_minus_it"] = less(outcomes(seeds, BASE), outcomes(seeds, arm), same)
        if arm == CONTROL:
            found["primary"] = found["teacher_minus_it"]
        if arm.startswith("grpo") and arm != UNTAUGHT:
            found["over_untaught"] = less(outcomes(seeds, arm), outcomes(seeds, UNTAUGHT), same)
        summary.append(found)
        print(f"{arm:38} {row['accuracy'][0]:.3f} {found.get('teacher_minus_it', '')}", flush=True)
    teacher = figures(seeds[:1], "the teacher", same)["accuracy"]
    return {"distinct": len(set(same)), "start": {"greedy": start["accuracy"]}, "teacher": teacher, "summary": summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=3840, help="of `trees, teacher`; its tokens are everyone's")
    options(parser, "teachers", first=30_000, num=1000)
    args = parser.parse_args()
    args.work, args.of_round = args.work.resolve(), OF_ROUND
    made = Seed(args.seeds[0], argparse.Namespace(work=args.work, set=["student=larger"]), CONFIG)
    more = ["-n", str(SOLUTIONS), "--set", f"train.sft.steps={STEPS}"]
    teacher = made.sft("the teacher", "--model", "larger", *more)
    args.set = ["student=embedded", *args.set]
    seeds = [Seed(seed, args, CONFIG) for seed in args.seeds]
    with served(teacher, args.work / "serve.log"), ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(lambda seed: stages(seed, teacher), seeds))
    if not args.train_only:
        facts = {"seeds": args.seeds, "first": args.first, "problems": args.num, "questions": args.questions}
        facts["teacher_parameters"] = read(teacher / "manifest.json")["parameters"]
        provenance.write(args.out, "teachers", facts | table(seeds))


if __name__ == "__main__":
    main()
