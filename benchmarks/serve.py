"""The server under load: latency and throughput over 1 to 64 clients; crowds with deadlines; a
soak.

    uv run python benchmarks/serve.py              # about a minute; results/serve.json
    # 64 and 200 clients, so many seconds each; results/crowds.json
    uv run python benchmarks/serve.py --crowds 60
    uv run python benchmarks/serve.py --soak 30    # so many minutes; results/soak.json

Starts `alphazero-llm-trainer serve` in a process of its own, with the embedded student, and asks it
as the openai client does (httpx, keep-alive). Each client has a connection of its own and asks one
question after another; every question is new to the cache. Plain samples, best-of-8, MCTS under the
calculator, and a long beam search that the deadline ends.

Crowds: all methods mixed, deadlines of 2 s or 500 ms; errors, answers later than 100 ms after their
deadline, and what is live and in memory before and after. The soak is the crowd of 64 for minutes,
while every second a client breaks its connection in the middle of a search and another sends a
request that is wrong. Clients and server share this machine's cores: ratios hold.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import linear_regression
from typing import Any

import httpx
import provenance

from alphazero_llm_trainer.problems.load import load_tasks

CLIENTS = (1, 4, 16, 64)
CROWDS = (64, 200)  # clients
NOBODY = b'{"model": "nobody", "messages": []}'
BAD = (b"", b"{", b"[]", b'{"messages": 5}', NOBODY, b'{"temperature": 1e-39}', b"\xff" * 2000)
LATE = 0.1  # seconds after a deadline
# Small enough to be full within the soak, so that what grows after that would be a leak.
SMALL = ("--set", "engine.cache_tokens=60000")
QUESTIONS = 4000
MIXES: dict[str, dict[str, Any]] = {
    "sample": {"model": "student"},
    "best-of-8": {"model": "student@best-of-8"},
    "mcts": {"model": "student@mcts", "temperature": 1.0},
    "beam, deadline 500 ms": {"model": "student@beam", "budget_tokens": 20_000, "deadline_ms": 500},
}

# A client's number and a body -> the answer, or what failed.
Ask = Callable[[int, dict[str, Any]], Awaitable[dict[str, Any] | str]]


@dataclass
class Load:
    """What came back: seconds a request, sampled tokens, and for those with a deadline how late the
    server had the answer.
    """

    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    hit: int = 0
    # By the server's own clock, from its reading the request.
    late: list[float] = field(default_factory=list)
    # By the client's: with the way, and the client's own waits.
    late_there: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)  # by status or exception
    wall: float = 0.0

    def add(self, seconds: float, body: dict[str, Any], deadline_ms: int | None) -> None:
        self.seconds.append(seconds)
        self.tokens += body["usage"]["completion_tokens"]
        self.hit += body["alphazero"]["deadline_hit"]
        if deadline_ms is not None:
            self.late.append(body["alphazero"]["seconds"] - deadline_ms / 1000)
            self.late_there.append(seconds - deadline_ms / 1000)

    def row(self) -> dict[str, Any]:
        return {
            "requests": len(self.seconds),
            "p50_ms": 1000 * quantile(self.seconds, 0.5),
            "p95_ms": 1000 * quantile(self.seconds, 0.95),
            "p99_ms": 1000 * quantile(self.seconds, 0.99),
            "requests_per_second": len(self.seconds) / self.wall,
            "sampled_tokens_per_second": self.tokens / self.wall,
            "deadlines_hit": self.hit,
            "late_max_ms": 1000 * max(self.late) if self.late else None,
            "over_100_ms_late": sum(late > LATE for late in self.late),
            "over_100_ms_late_at_the_client": sum(late > LATE for late in self.late_there),
            "errors": dict(self.errors),
        }


def quantile(values: list[float], share: float) -> float:
    """The value that so large a share of `values` is at or below; NaN of nothing."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


class Questions:
    """Questions that come once each, as long as they last."""

    def __init__(self) -> None:
        self.texts = [
            task.problem.question for task in load_tasks("embedded", "test", QUESTIONS, start=1000)
        ]
        self.turn = count()

    def body(self, mix: dict[str, Any]) -> dict[str, Any]:
        number = next(self.turn)
        messages = [{"role": "user", "content": self.texts[number % QUESTIONS]}]
        return {"messages": messages, "seed": number, **mix}


async def put(
    clients: int, seconds: float, ask: Ask, mixes: list[dict[str, Any]], questions: Questions
) -> Load:
    """`clients` clients, each asking one question after another for so many seconds."""
    load, end = Load(), time.perf_counter() + seconds

    async def client(number: int) -> None:
        turn = number
        while time.perf_counter() < end:
            body = questions.body(mixes[turn % len(mixes)])
            turn += 1
            began = time.perf_counter()
            answer = await ask(number, body)
            if isinstance(answer, str):
                load.errors[answer] += 1
            else:
                load.add(time.perf_counter() - began, answer, body.get("deadline_ms"))

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(clients)))
    load.wall = time.perf_counter() - began
    return load


# -- the server ------------------------------------------------------------------------------------


class Served:
    """The server's process; what it says goes to `log`. It may open so many `files`."""

    def __init__(self, *flags: str, log: Any = None, files: int | None = None) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(provenance.ROOT)}
        environment.pop("ALPHAZERO_API_KEY", None)
        few = ("sh", "-c", f'ulimit -n {files}; exec "$@"', "sh") if files else ()
        self.process = subprocess.Popen(
            [*few, sys.executable, "-m", "alphazero_llm_trainer", "serve", "--model", "embedded",
             "--port", "0", *flags],
            env=environment, cwd=provenance.ROOT, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split("answers at ")[1].split("/v1")[0]

    @asynccontextmanager
    async def asking(self, clients: int) -> AsyncIterator[Ask]:
        """What puts a question for the client of a number. Each has a connection of its own: one
        pool of 200 connections would make its callers wait for one another.
        """
        context = httpx.create_ssl_context()  # made once: it takes longer than a request
        async with AsyncExitStack() as stack:
            https = [
                await stack.enter_async_context(
                    httpx.AsyncClient(base_url=self.url, timeout=60, verify=context)
                )
                for _ in range(clients)
            ]

            async def ask(client: int, body: dict[str, Any]) -> dict[str, Any] | str:
                try:
                    response = await https[client].post("/v1/chat/completions", json=body)
                except httpx.HTTPError as error:
                    return type(error).__name__
                return response.json() if response.status_code == 200 else str(response.status_code)

            yield ask

    def rss(self) -> float:
        """Memory in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return round(int(status.split("VmRSS:")[1].split()[0]) / 1024, 1)

    def state(self) -> dict[str, float]:
        """Memory in MiB, and what is live by the server's own metrics."""
        health = httpx.get(f"{self.url}/health").json()
        return {
            "rss_mib": self.rss(),
            "live_requests": health["live"],
            "waiting_requests": health["waiting"],
        }

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        return self.process.wait(timeout=60)


async def through_http(
    served: Served, seconds: float, questions: Questions
) -> dict[str, dict[str, Any]]:
    rows = {}
    async with served.asking(max(CLIENTS)) as ask:
        for name, mix in MIXES.items():
            for clients in CLIENTS:
                load = await put(clients, seconds, ask, [mix], questions)
                rows[f"{name}/{clients}"] = load.row()
    return rows


async def crowd(
    served: Served, clients: int, seconds: float, questions: Questions
) -> dict[str, Any]:
    """Clients with all methods, each request with a deadline of 2 s or 500 ms; memory is read
    thirty times on the way.
    """
    mixes = [mix | {"deadline_ms": mix.get("deadline_ms", 2000)} for mix in MIXES.values()]
    memory: list[float] = []

    async def watch() -> None:
        while True:
            await asyncio.sleep(seconds / 30)
            memory.append(served.rss())

    async with served.asking(clients) as ask:
        before, watching = served.state(), asyncio.ensure_future(watch())
        load = await put(clients, seconds, ask, mixes, questions)
        watching.cancel()
    await asyncio.sleep(0.5)
    return {
        "seconds": load.wall,
        **load.row(),
        "before": before,
        "after": served.state(),
        "rss_mib": memory,
    }


async def soak(served: Served, seconds: float, questions: Questions) -> dict[str, Any]:
    """The crowd of 64, and every second a client that goes and a request that is wrong."""
    gone, refused, host = 0, Counter[str](), httpx.URL(served.url)

    async def disturb() -> None:
        nonlocal gone
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
            while True:
                await asyncio.sleep(1)
                _, writer = await asyncio.open_connection(host.host, host.port)
                body = json.dumps(
                    questions.body({"model": "student@beam", "budget_tokens": 20_000})
                ).encode()
                head = (
                    f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host.host}\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
                wrong = BAD[gone % len(BAD)]
                response = await http.post("/v1/chat/completions", content=wrong)
                refused[str(response.status_code)] += 1
                writer.transport.abort()
                gone += 1

    disturbing = asyncio.ensure_future(disturb())
    try:
        found = await crowd(served, 64, seconds, questions)
    finally:
        disturbing.cancel()
    memory = found["rss_mib"]
    settled = memory[len(memory) // 3 :]
    slope = linear_regression(range(len(settled)), settled).slope * 30 / seconds * 3600
    disturbed = {"clients_gone": gone, "wrong_requests": dict(refused), "rss_mib_an_hour": slope}
    return found | disturbed | {"failed": disturbing.done() and not disturbing.cancelled()}


def table(http: dict[str, Any]) -> str:
    lines = ["method / clients                p50 ms     p95     p99   req/s   tok/s  errors"]
    figures = ("p50_ms", "p95_ms", "p99_ms", "requests_per_second")
    for name, row in http.items():
        cells = "".join(f"{row[figure]:8.1f}" for figure in figures)
        lines.append(
            f"{name:30}{cells}{row['sampled_tokens_per_second']:8.0f}{sum(row['errors'].values()):8}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = provenance.make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each row")
    parser.add_argument("--crowds", type=float, help="the crowds alone: seconds of each")
    parser.add_argument("--soak", type=float, help="the soak alone: minutes")
    args = parser.parse_args()
    questions, served, name = Questions(), Served(*SMALL), "serve"
    found: dict[str, Any] = {}
    try:
        if args.crowds is not None:
            name = "crowds"
            found["crowds"] = {
                str(size): asyncio.run(crowd(served, size, args.crowds, questions))
                for size in CROWDS
            }
        elif args.soak is not None:
            name, found = (
                "soak",
                asyncio.run(soak(served, 60 * args.soak, questions)) | {"minutes": args.soak},
            )
        else:
            found["http"] = asyncio.run(through_http(served, args.seconds, questions))
    finally:
        found |= {"exit_code": served.stop(), "cores": os.cpu_count()}
    print(table(found["http"]) if name == "serve" else json.dumps(found, indent=2))
    provenance.write(args.out or provenance.RESULTS / f"{name}.json", found)


if __name__ == "__main__":
    main()
