"""On paper: search and training on 1, 8, 64 and 512 cards, and where that stops scaling.

    uv run python benchmarks/scaling.py

A simulation of rounds by discrete events. Measured here: how the lengths of a tree's samples spread (a journal of the embedded
student, made first), and what the one journal writer takes for a record. Reckoned: a card's decode steps and training, by
the formulas and the table of `info --plan --machine`. Assumed: the mean length of a sample and what loading an adapter takes
(ADAPTER_SECONDS). Nothing of this ran on a GPU.

A round is Q questions, each a tree of `train.iterations` expansions one after the other, of `train.samples` samples at once.
Trees are taken by whoever has room. An expansion ends with its longest sample, a round with its last tree; then the rows are
trained on and the adapter goes to every engine. "Together": all cards search, then as many train as a minibatch has rows.
"Apart": an eighth of the cards trains the round before while the others search (a lag of one round, `train.lag`).
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer import __version__  # noqa: E402
from alphazero_llm_trainer.cli.machine import forecast_of  # noqa: E402
from alphazero_llm_trainer.collect import Collector, GradedTree  # noqa: E402
from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.config.machines import parse_machine, read_machines  # noqa: E402
from alphazero_llm_trainer.mcts.extract import trajectories  # noqa: E402
from alphazero_llm_trainer.mcts.journal import Journal  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.training.machine import Rates, decode_seconds  # noqa: E402
from benchmarks import provenance  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "scaling.json"
CARDS = (1, 8, 64, 512)
QUESTIONS = (96, 768, 6144)
ADAPTER_SECONDS = 1.0  # assumed: a version's adapter written, read and put in place by all engines at once


@dataclass(slots=True)
class Engine:
    """One card that decodes. All its rows get a token a step, so a row ends when `done` has grown by its length."""

    step: Callable[[int], float]  # seconds of a step with so many rows
    room: int  # rows
    trees: int = 0  # under way
    done: float = 0.0  # tokens that a row, there from the start, would have
    now: float = 0.0  # seconds
    rows: list[tuple[float, int]] = field(default_factory=list)  # a heap of (`done` at its end, tree)

    def catch_up(self, now: float) -> None:
        """Let time pass without an end of a row."""
        if self.rows:
            self.done += (now - self.now) / self.step(len(self.rows))
        self.now = now

    def next_end(self) -> float:
        """When its next row ends."""
        return (
            self.now + max(self.rows[0][0] - self.done, 0.0) * self.step(len(self.rows)) if self.rows else float("inf")
        )


def search_seconds(
    engines: Sequence[Engine], trees: int, waves: int, samples: int, length: Callable[[], float]
) -> tuple[float, float]:
    """Seconds until the last tree ends, and the mean over engines of those that each had anything to do."""
    waiting = deque(range(trees))
    left = [waves] * trees  # expansions to come
    under_way = [0] * trees  # samples of the present one
    at = {number: engine for number, engine in enumerate(engines)}

    def begin(engine: Engine, tree: int) -> None:
        left[tree] -= 1
        under_way[tree] = samples
        for _ in range(samples):
            heapq.heappush(engine.rows, (engine.done + length(), tree))

    def takes(engine: Engine) -> bool:
        """Whether there is a tree left and room for it, which it took; between expansions a tree keeps its room."""
        if not waiting or (engine.trees + 1) * samples > engine.room:
            return False
        engine.trees += 1
        begin(engine, waiting.popleft())
        return True

    # One tree each in turn, so that few trees are spread over all engines.
    while any([takes(engine) for engine in engines]):
        pass
    ends = [(engine.next_end(), number) for number, engine in at.items()]
    heapq.heapify(ends)
    busy = [0.0] * len(engines)
    while ends[0][0] < float("inf"):
        now, number = heapq.heappop(ends)
        engine = at[number]
        engine.catch_up(now)
        _, tree = heapq.heappop(engine.rows)
        under_way[tree] -= 1
        if not under_way[tree]:
            if left[tree]:
                begin(engine, tree)
            else:
                engine.trees -= 1
                takes(engine)
        busy[number] = now
        heapq.heappush(ends, (engine.next_end(), number))
    return max(busy), sum(busy) / len(busy)


def measured(questions: int) -> dict[str, Any]:
    """Samples' lengths over their mean, and what a journal's record takes, from trees of the embedded student."""
    config = load_config(overrides=["student=embedded", "rewards.use_student_model=false", "train.requeue_limit=0"])
    student = load_student(config)
    tasks = [(task.problem.id, task) for task in load_tasks("embedded", "train", questions, start=5000)]

    async def collected() -> list[GradedTree]:
        return [one async for one in Collector(student, config, None).collect(tasks, config.seed)]

    trees = asyncio.run(collected())
    lengths = [len(found.token_ids) for tree in trees for found in trajectories(tree.tree)]
    mean = sum(lengths) / len(lengths)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        journal = Journal(path)
        began = time.process_time()
        for turn in range(20):
            for tree in trees:
                journal.append({**tree.record(), "key": f"{turn}/{tree.key}"})
        journal.close()
        seconds = time.process_time() - began
        size = path.stat().st_size
    return {
        "trees": questions,
        "spread": sorted(round(length / mean, 3) for length in lengths),
        "record_bytes": size / 20 / len(trees),
        "record_tokens": sum(tree.cost.sampled_tokens for tree in trees) / len(trees),
        "bytes_a_second": size / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.2-3b", help="a name of models.yaml")
    parser.add_argument("--card", default="h100-80", help="a card of config/machines.yaml")
    parser.add_argument("--tokens", type=int, default=150, help="assumed mean tokens of a sample")
    parser.add_argument("--trees", type=int, default=192, help="trees of the embedded student that are measured")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    found, rng = measured(args.trees), random.Random(args.seed)
    config = load_config(overrides=[f"student={args.model}", "rewards.use_student_model=false"])
    table = read_machines()
    machine = parse_machine(f"1x{args.card}", table)
    forecast, _ = forecast_of(config, args.model, None)
    rates = Rates.of(forecast, machine, table, "vllm")
    sizes = sorted({1 << power for power in range(12) if 1 << power < forecast.rows} | {forecast.rows})
    seconds = {rows: decode_seconds(forecast, machine, table, "vllm", rows) for rows in range(1, forecast.rows + 1)}
    train, samples = config.train, config.train.samples
    rows_a_question = train.rows_per_round * train.grpo.epochs / train.questions_per_round
    record = found["record_bytes"] * samples * train.iterations * args.tokens / found["record_tokens"]
    rounds = []
    for cards in CARDS:
        for questions in QUESTIONS:
            for way in ("together", "apart") if cards > 1 else ("together",):
                trainers = min(cards, train.grpo.batch_size) if way == "together" else max(cards // 8, 1)
                trainers = min(trainers, train.grpo.batch_size)
                engines = cards if way == "together" else cards - trainers
                search, busy = search_seconds(
                    [Engine(seconds.__getitem__, forecast.rows) for _ in range(engines)],
                    questions,
                    train.iterations,
                    samples,
                    lambda: args.tokens * rng.choice(found["spread"]),
                )
                parts = {
                    "search": search,
                    "waiting for the last trees": search - busy,
                    "journal": questions * record / found["bytes_a_second"],
                    "training": questions * rows_a_question * forecast.length / rates.train / trainers,
                    "adapter": ADAPTER_SECONDS,
                }
                # Records are written while trees grow; the slower of the two is what counts.
                grown = max(search, parts["journal"])
                whole = grown + parts["training"] if way == "together" else max(grown, parts["training"])
                whole += ADAPTER_SECONDS
                rounds.append(
                    {"cards": cards, "questions": questions, "way": way, "engines": engines, "trainers": trainers}
                    | {"seconds": whole, "questions_an_hour": 3600 * questions / whole, "parts": parts}
                )
    for row in rounds:
        alone = next(r for r in rounds if r["cards"] == 1 and r["questions"] == row["questions"])
        row["efficiency"] = row["questions_an_hour"] / alone["questions_an_hour"] / row["cards"]
        print(
            f"{row['cards']:4} cards, {row['questions']:6,} questions a round, {row['way']:8}"
            f" {row['questions_an_hour']:12,.0f} questions/h, efficiency {row['efficiency']:.2f}"
        )
    del found["spread"]
    result = {
        "command": f"uv run python benchmarks/scaling.py --model {args.model} --card {args.card} --tokens {args.tokens}"
        f" --trees {args.trees} --seed {args.seed}",
        "version": __version__, "seed": args.seed, "model": args.model, "card": args.card, "tokens": args.tokens,
        "adapter_seconds": ADAPTER_SECONDS, "measured": found, "record_bytes": record,
        "decode_tokens_a_second": {str(rows): rows / seconds[rows] for rows in sizes}, "rows": forecast.rows,
        "trained_tokens_a_second": rates.train, "batch_size": train.grpo.batch_size,
        "iterations": train.iterations, "samples": samples, "rounds": rounds,
    }  # fmt: skip
    provenance.write(args.out, "scaling", result)


if __name__ == "__main__":
    main()
