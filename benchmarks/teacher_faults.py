"""Thousands of teacher requests through real searches, against a server that misbehaves in every known way.

    uv run python benchmarks/teacher_faults.py

The embedded student searches embedded problems with four remote teachers on a loopback server (tests/fault_server.py)
that injects faults at random and keeps its own count of what it charged: a good teacher, a poor one, a dear one, and one
that reports no usage. Scenarios: faults alone; faults under a budget (dollars, tokens and calls a run, calls a question);
a model that vanishes; a key that is refused in the middle; teachers asked only where the student fails; a client alone
for long. Printed: faults, trees, the most attempts of one request, the server's books against the ledgers, what is left
open.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fault_server import FAULTS, FaultServer  # noqa: E402

from alphazero_llm_trainer.collect import Collector  # noqa: E402
from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.config.sections import TeacherModel  # noqa: E402
from alphazero_llm_trainer.policy.student import Student, load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.problems.scripted_teacher import follow_through, spoiled  # noqa: E402
from alphazero_llm_trainer.teachers.answer import CallError  # noqa: E402
from alphazero_llm_trainer.teachers.client import ChatClient, Endpoint, RetryPolicy  # noqa: E402
from alphazero_llm_trainer.types import Task  # noqa: E402
from benchmarks import provenance  # noqa: E402

# Model -> (prompt, completion) dollars per million tokens, and how often its right step is right.
MODELS = {
    "bench/good": ((0.5, 1.5), 0.95),
    "bench/poor": ((0.5, 1.5), 0.4),
    "bench/dear": ((30.0, 150.0), 0.97),
    "bench/vague": ((0.5, 1.5), 0.8),
}
RETRIES = 2
MOST_ATTEMPTS = RETRIES + 2  # of one request: the first, the retries, one with room for thinking
LATENCY = 0.03  # mean seconds of an answer
WAITS = ("hang", "drip")
KEYS = ("401", "402", "403")


class Brain:
    """Writes what a model would: the problem's next step, right or with a slip."""

    def __init__(self, tasks: list[Task], seed: int) -> None:
        self.solutions = {task.problem.question: (task.solution or "").split("\n") for task in tasks}
        self.random = Random(seed)

    def __call__(self, asked: dict[str, Any]) -> str:
        text = asked["messages"][-1]["content"]
        question, _, rest = text.removeprefix("Problem: ").partition("\n\nSteps so far:\n")
        written, _, order = rest.partition("\n\n")
        steps = [] if written == "(none)" else written.split("\n")
        step = follow_through(self.solutions[question], steps)
        if step is None:
            return "I don't know."
        wrong = "mistake" in order or self.random.random() > MODELS.get(asked["model"], ((0, 0), 0.9))[1]
        return spoiled(step, question, self.random, 1)[0] if wrong else step


class Chaos:
    """Draws a fault for each request: `share` of them fail, waits rarely, keys are refused from request `refuse` on."""

    def __init__(self, seed: int, share: float, refuse: int | None = None) -> None:
        self.random, self.share, self.refuse = Random(seed), share, refuse
        self.faults = [f for f in FAULTS if not f.startswith("ok") and f not in (*WAITS, *KEYS, "404", "huge")]
        self.good = [f for f in FAULTS if f.startswith("ok") and f != "ok-no-usage"]

    def __call__(self, number: int, asked: dict[str, Any]) -> str:
        if self.refuse is not None and number >= self.refuse:
            return "401"
        if asked["model"] == "bench/vanished":
            return "404"
        drawn = self.random.random()
        if drawn < 0.004:
            return self.random.choice((*WAITS, "huge"))
        if drawn < self.share:
            return self.random.choice(self.faults)
        return "ok-no-usage" if asked["model"] == "bench/vague" else self.random.choice(self.good)


def overrides(url: str, models: dict[str, Any], more: list[Any]) -> list[Any]:
    """The configuration of a scenario."""
    teachers = [
        {"model": name, "prompt_cost": price[0], "completion_cost": price[1]} for name, (price, _) in models.items()
    ]
    return [
        "student=embedded",
        "rewards.use_student_model=false",
        "teachers.tier=local",
        "train.extend=none",
        f"teachers.max_retries={RETRIES}",
        "teachers.timeout_seconds=6.0",
        "teachers.max_concurrent=32",
        "teachers.cool_down_seconds=0.2",
        "teachers.longest_cool_down_seconds=1.0",
        "teachers.failures_in_a_row=4",
        "teachers.max_tokens=160",
        "teachers.budget.run.dollars=null",
        {"teacher_tiers": {"local": {"base_url": url, "key_variable": "BENCH_KEY", "teachers": teachers}}},
        *more,
    ]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


def resident() -> int:
    """Bytes of this process in memory."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def search(collector: Collector, tasks: list[Task], seed: int) -> tuple[Counter[str], int]:
    """Searches all tasks on a new event loop: how the trees ended, and how many nodes teachers wrote."""

    async def run() -> tuple[Counter[str], int]:
        ended: Counter[str] = Counter()
        taught = 0
        async for tree in collector.collect([(task.problem.id, task) for task in tasks], seed):
            ended[tree.ended_by] += 1
            taught += sum(source != "student" for source in tree.tree.source)
        return ended, taught

    return asyncio.run(run())


def scenario(
    name: str,
    student: Student,
    tasks: list[Task],
    folder: Path,
    chaos: Chaos,
    *,
    more: list[Any] | None = None,
    models: dict[str, Any] | None = None,
    rounds: int = 1,
) -> dict[str, Any]:
    """One scenario's figures; `rounds` event loops, one after another, share the questions."""
    models = MODELS if models is None else models
    prices = {model: price for model, (price, _) in models.items()}
    pauses = Random(9)
    server = FaultServer(
        chaos,
        Brain(tasks, 11),
        prices=prices,
        hang=30.0,
        latency=lambda: pauses.expovariate(1 / LATENCY),
        echo=os.environ["BENCH_KEY"],
    )
    folder.mkdir(exist_ok=True)
    began = time.perf_counter()
    with server.running() as url:
        collector = Collector(student, load_config(overrides=overrides(url, models, more or [])), None)
        collector.keep_books(folder)
        ended: Counter[str] = Counter()
        taught, size = 0, -(-len(tasks) // rounds)
        files, memory = [], []
        for start in range(0, len(tasks), size):
            one, nodes = search(collector, tasks[start : start + size], 3)
            ended += one
            taught += nodes
            gc.collect()
            files.append(open_files())
            memory.append(resident())
    assert collector.remote is not None and collector.teachers is not None
    books = collector.remote.books
    exact = [model for model in models if model != "bench/vague"]
    told = [one for one in server.served if one.told and one.model in exact]
    mine = [collector.teachers.ledgers[model].cost for model in exact]
    tokens, dollars = server.charged()
    shown = {
        "seconds": round(time.perf_counter() - began, 1),
        "requests": len(server.served),
        "faults": dict(server.faults.most_common()),
        "trees": {"asked": len(tasks), "ended": dict(ended)},
        "teacher_nodes": taught,
        "most_attempts_of_a_request": max(server.attempts.values(), default=0),
        "most_at_once": server.most_live,
        "answers_arrived": {
            "server": {"tokens": sum(s.prompt + s.sampled for s in told), "dollars": sum(s.dollars for s in told)},
            "ledgers": {
                "tokens": sum(c.prompt_tokens + c.cached_tokens + c.sampled_tokens for c in mine),
                "dollars": sum(c.dollars for c in mine),
            },
        },
        "charged_by_server": {"tokens": tokens, "dollars": dollars, "calls": len(server.served)},
        "budget": books.as_dict(),
        "ledgers": collector.ledgers()["teachers"],
        "breaks": {
            t.name: b.opened for t, b in zip(collector.teachers.teachers, collector.teachers.breakers, strict=True)
        },
        "open_files_after_each_round": files,
        "resident_mib_after_each_round": [round(m / 2**20) for m in memory],
        "key_on_disk": any(
            os.environ["BENCH_KEY"].encode() in p.read_bytes() for p in folder.rglob("*") if p.is_file()
        ),
    }
    questions = collector.config.teachers.budget.question
    if questions.calls is not None:
        shown["most_calls_of_a_question"] = max(by_question(folder).values())
    shown["verdicts"] = verdicts(shown, collector, questions.calls)
    print(f"\n== {name}")
    report(shown)
    return shown


def soak(calls: int, rounds: int) -> dict[str, Any]:
    """Calls of one client without a search, event loop after event loop: what stays open and in memory."""
    wanted = Random(12)
    faults = [fault for fault in FAULTS if fault not in (*WAITS, *KEYS)]
    server = FaultServer(lambda number, asked: wanted.choice(faults), prices={"bench/good": MODELS["bench/good"][0]})
    files, memory, tasks = [], [], []
    policy = RetryPolicy(timeout=6.0, retries=RETRIES, first_wait=0.001, longest_wait=0.01)

    async def ask(client: ChatClient, start: int) -> int:
        async def one(seed: int) -> None:
            with contextlib.suppress(CallError):
                await client.complete([{"role": "user", "content": "What next?"}], seed=seed, max_tokens=160)

        await asyncio.gather(*(one(start + i) for i in range(calls // rounds)))
        await client.endpoint.close()
        return len(asyncio.all_tasks()) - 1

    with server.running() as url:
        client = ChatClient(Endpoint(url, os.environ["BENCH_KEY"], policy, 32), TeacherModel(model="bench/good"))
        for number in range(rounds):
            tasks.append(asyncio.run(ask(client, number * calls)))
            server.requests.clear()
            server.served.clear()
            server.attempts.clear()
            gc.collect()
            files.append(open_files())
            memory.append(round(resident() / 2**20, 1))
    shown = {"requests": server.count, "open_files": files, "resident_mib": memory, "tasks_left": tasks}
    # The first rounds fill allocators and caches.
    shown["verdicts"] = {
        "no connection left open": files[-1] <= files[0],
        "no task left": not any(tasks),
        "memory level": memory[-1] - memory[rounds // 2] < 8.0,
    }
    print(f"\n== soak: {shown}")
    return shown


def by_question(folder: Path) -> Counter[str]:
    """Attempts a question, by the books on the disk."""
    lines = map(json.loads, (folder / "teacher_books.jsonl").read_text().splitlines())
    return Counter(line["question"] for line in lines if line["event"] == "reserve")


def verdicts(shown: dict[str, Any], collector: Collector, question_calls: int | None) -> dict[str, bool]:
    """What must hold."""
    limits, charged, spent = collector.config.teachers.budget.run, shown["charged_by_server"], shown["budget"]["spent"]
    server, ledgers = shown["answers_arrived"]["server"], shown["answers_arrived"]["ledgers"]
    asks = {name: one["calls"] for name, one in shown["ledgers"].items()}
    ends = {name: one["proposals_used"] + sum(one["failures"].values()) for name, one in shown["ledgers"].items()}
    files = shown["open_files_after_each_round"]
    return {
        "no tree lost": shown["trees"]["ended"] == {"iterations": shown["trees"]["asked"]},
        "attempts bounded": shown["most_attempts_of_a_request"] <= MOST_ATTEMPTS,
        "budget never exceeded": all(
            getattr(limits, name) is None or charged[name] <= getattr(limits, name) + 1e-12
            for name in ("dollars", "tokens", "calls")
        ),
        "question budget never exceeded": question_calls is None or shown["most_calls_of_a_question"] <= question_calls,
        "books cover what the server charged": all(spent[name] >= charged[name] - 1e-9 for name in charged),
        "ledgers equal the server's books where the answer arrived": server["tokens"] == ledgers["tokens"]
        and abs(server["dollars"] - ledgers["dollars"]) < 1e-9,
        "every ask accounted for": all(asks[name] >= ends[name] for name in asks),
        "no connection left open": len(files) < 2 or files[-1] <= files[0],
        "key not on disk": not shown["key_on_disk"],
    }


def report(shown: dict[str, Any]) -> None:
    print(
        f"{shown['requests']:,} requests in {shown['seconds']} s, {shown['trees']}, {shown['teacher_nodes']} teacher nodes"
    )
    print("faults: " + ", ".join(f"{name} {count}" for name, count in shown["faults"].items()))
    print(f"most attempts of a request: {shown['most_attempts_of_a_request']}, at once: {shown['most_at_once']}")
    print(f"charged by the server: {shown['charged_by_server']}; on the books: {shown['budget']}")
    print(f"where answers arrived: {shown['answers_arrived']}")
    for name, one in shown["ledgers"].items():
        value = one["mean_value"]
        print(
            f"  {name:<15} {one['calls']:>5} asks, {one['cached']} cached, {one['proposals_used']:>5} used, mean value"
            f" {'-' if value is None else f'{value:.3f}'}, ${one['cost']['dollars']:.4f}, {shown['breaks'][name]} breaks,"
            f" failures {one['failures']}"
        )
    print(f"open files {shown['open_files_after_each_round']}, MiB {shown['resident_mib_after_each_round']}")
    print("; ".join(f"{name}: {'yes' if held else 'NO'}" for name, held in shown["verdicts"].items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=320, help="questions a scenario")
    parser.add_argument("--share", type=float, default=0.35, help="share of the requests that meet a fault")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "teacher_faults.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    # The breakers' words about each of hundreds of breaks; the run's own are in the tests.
    logging.disable(logging.WARNING)
    os.environ["BENCH_KEY"] = "sk-bench-3141592653"
    student = load_student(load_config(overrides=["student=embedded"]))
    tasks = load_tasks("embedded", "train", args.num, start=20_000)
    budget = [
        "teachers.budget.run.dollars=0.5",
        "teachers.budget.run.tokens=120000",
        "teachers.budget.run.calls=900",
        "teachers.budget.question.calls=8",
    ]
    vanished = {**{name: MODELS[name] for name in ("bench/good", "bench/poor")}, "bench/vanished": ((1.0, 1.0), 0.9)}
    few = tasks[: len(tasks) // 4]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = {
            "faults": scenario("faults", student, tasks, folder / "faults", Chaos(1, args.share), rounds=8),
            "again, half of the requests fail": scenario(
                "again, half of the requests fail", student, tasks, folder / "half", Chaos(2, 0.5), rounds=4
            ),
            "budget": scenario("budget", student, tasks, folder / "budget", Chaos(3, args.share), more=budget),
            "a model vanished": scenario(
                "a model vanished", student, few, folder / "vanished", Chaos(4, 0.1), models=vanished
            ),
            "the key is refused after 100 requests": scenario(
                "the key is refused after 100 requests", student, few, folder / "key", Chaos(5, 0.1, refuse=100)
            ),
            "only where the student fails": scenario(
                "only where the student fails",
                student,
                tasks,
                folder / "failing",
                Chaos(6, args.share),
                more=["teachers.ask=failing"],
            ),
        }
    found["soak"] = soak(10 * args.num, 10)
    held = all(all(one["verdicts"].values()) for one in found.values())
    total = sum(one["requests"] for one in found.values())
    print(f"\n{total:,} requests in all; everything held: {'yes' if held else 'NO'}")
    command = f"uv run python benchmarks/teacher_faults.py --num {args.num} --share {args.share}"
    provenance.write(
        args.out, "teacher_faults", {"command": command, "requests": total, "held": held, "scenarios": found}
    )


if __name__ == "__main__":
    main()
