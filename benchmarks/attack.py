"""What comes over a network, again and again: hostile clients and hostile teachers.

`serve.py --soak` has crowds; power cuts and full disks are in `tests/`.

    uv run python benchmarks/attack.py --minutes 5

Each part tries until its share of the time is over, and at least once. A try fails where something
crashes with a traceback, takes over 5 s where it should be refused at once, or is lost.
Printed: tries and failures of each part, and the first failures in words. The exit code is 1 where
there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import provenance

sys.path[:0] = [str(provenance.ROOT / place) for place in ("tests", "tests/unit/chat")]

import httpx  # noqa: E402
from serve import BAD, Served  # noqa: E402
from test_teachers import CASES, ONE, QUESTION, always, play  # noqa: E402

from alphazero_llm_trainer.chat.answer import CallError  # noqa: E402
from alphazero_llm_trainer.chat.client import ChatClient  # noqa: E402

LONGEST_SECONDS = 5.0  # of an answer that is refused at once
EXAMPLES = 5  # failures that are kept in words
# Descriptors of the server, and clients that say nothing or half of something to it, or read
# nothing.
FILES, SILENT = 300, 400
MOST_MIB = 150  # of memory that these may take
JSON = {"Content-Type": "application/json"}
HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
SLOW = HALF.replace(b"99", b"999999") + b" " * 900_000
UNREAD = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50

# What a try came to: None, or what was wrong.
Tries = Iterator[str | None]


# -- strangers -------------------------------------------------------------------------------------


def teachers(rng: Random, folder: Path) -> Tries:
    """A provider that misbehaves in every known way: an error of its kind, in time, without its
    words.
    """
    for fault, kind in CASES["faults"].items():

        async def use(endpoint: Any) -> str | None:
            try:
                await asyncio.wait_for(ChatClient(endpoint, ONE).complete(QUESTION), 30)
            except CallError as error:
                return None if error.kind == kind else f"{fault}: {error}"
            return f"{fault}: it counts as an answer"

        # The server's own silence ends after 2 s.
        yield play(always(fault), use, timeout_seconds=0.5 if fault in ("hang", "drip") else 5.0)


@contextlib.contextmanager
def serving(log: Path) -> Iterator[Served]:
    """`serve` with FILES descriptors, whose errors go to `log`."""
    with log.open("w") as heard:
        served = Served(log=heard, files=FILES)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.wait()


def healthy(url: str) -> float:
    """Seconds until `/health` has answered a new connection."""
    began = time.perf_counter()
    httpx.get(f"{url}/health", timeout=LONGEST_SECONDS).raise_for_status()
    return time.perf_counter() - began


def clients(rng: Random, folder: Path) -> Tries:
    """Silent clients, half-sent requests and unread answers in crowds, made-up requests, and
    SIGTERM while one is under way.
    """
    with serving(folder / "log") as served:
        url, process = served.url, served.process
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        httpx.get(f"{url}/openapi.json", timeout=30)  # which is made once
        alone, before, silent = healthy(url), served.rss(), []
        for number in range(SILENT):
            silent.append(socket.create_connection(place))
            says = UNREAD if number < 4 else (b"", b"GET /health HT", HALF, SLOW)[number % 4]
            with contextlib.suppress(ConnectionError):  # refused, or its place is another's by then
                silent[-1].sendall(says)
        time.sleep(1.0)  # what was sent is read
        for _ in range(20):
            try:
                seconds = healthy(url)
            except httpx.HTTPError as error:
                yield f"{SILENT} silent clients: {type(error).__name__}"
                continue
            yield (
                None
                if seconds < alone + 1.0
                else f"{SILENT} silent clients: {seconds:.1f} s instead of {alone:.1f}"
            )
            time.sleep(0.3)
        taken = served.rss() - before
        yield None if taken < MOST_MIB else f"{SILENT} silent clients took {taken:.0f} MiB"
        for one in silent:
            one.close()
        body = json.dumps(
            {"model": "student", "messages": [{"role": "user", "content": "1 and 2?"}]}
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        for wrong in (*BAD, b'{"model": "' + b"x" * 5000 + b'"}'):
            answer = httpx.post(
                f"{url}/v1/chat/completions", content=wrong, headers=JSON, timeout=30
            )
            fine = 400 <= answer.status_code < 500 and len(answer.content) < 2000
            yield None if fine else f"a wrong request: {answer.status_code} for {wrong[:80]!r}"
        stranger = httpx.get(f"{url}/v1/models", headers={"Host": "elsewhere.example"}, timeout=30)
        yield None if stranger.status_code >= 400 else "a foreign Host was answered"
        for _ in range(100):
            raw = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300)))
            made_up = rng.choice((body[: rng.randrange(len(body))], raw, body.replace(b"1", raw)))
            try:
                answer = httpx.post(
                    f"{url}/v1/chat/completions", content=made_up, headers=JSON, timeout=30
                )
                fine = 400 <= answer.status_code < 500 or answer.status_code == 200
                yield (
                    None
                    if fine
                    else f"a made-up request: {answer.status_code} for {made_up[:100]!r}"
                )
            except httpx.HTTPError as error:
                yield f"a made-up request: {type(error).__name__} for {made_up[:100]!r}"
        long = {"model": "student", "method": "beam", "budget_tokens": 20_000, "deadline_ms": 3000}
        long["messages"] = [
            {
                "role": "user",
                "content": "Ana has 13 apples and buys 14 more, then eats 5. How many?",
            }
        ]
        with socket.create_connection(place) as under_way:
            asked = json.dumps(long).encode()
            under_way.sendall(
                head.replace(str(len(body)).encode(), str(len(asked)).encode(), 1) + asked
            )
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            under_way.settimeout(60)
            heard = under_way.recv(100)
        yield (
            None if b" 200 OK" in heard else f"after SIGTERM the request under way heard {heard!r}"
        )
        process.wait(60)
        yield (
            None
            if process.returncode == 0
            else f"the server ended with exit code {process.returncode}"
        )
    size = (folder / "log").stat().st_size
    yield None if size < 100_000 else f"the log has {size:,} bytes"


# -- all of it -------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Random, Path], Tries]] = {
    "hostile teachers": teachers,
    "hostile clients": clients,
}


def attacked(part: Callable[[Random, Path], Tries], rng: Random, seconds: float) -> dict[str, Any]:
    """Tries of a part until its time is over."""
    began, tries, wrong = time.perf_counter(), 0, []
    while not tries or time.perf_counter() - began < seconds:
        folder = Path(tempfile.mkdtemp(prefix="alphazero-attack-"))
        try:
            for found in part(rng, folder):
                tries += 1
                if found is not None:
                    wrong.append(found)
        except Exception:  # noqa: BLE001 - one broken attack must not end the others
            tries += 1
            wrong.append(f"the attack itself: {traceback.format_exc(limit=-2)[-500:]}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    about = (part.__doc__ or "").strip().replace("\n    ", " ")
    return {"what": about, "tries": tries, "failures": len(wrong), "examples": wrong[:EXAMPLES],
            "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip


def main() -> int:
    parser = provenance.make_parser(__doc__, "reliability")
    parser.add_argument(
        "--minutes",
        type=float,
        default=5.0,
        help="all parts together, about (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--only", choices=PARTS, nargs="+", default=list(PARTS), metavar="PART", help="default: all"
    )
    args = parser.parse_args()
    share, parts = 60 * args.minutes / len(args.only), {}
    for name in args.only:
        parts[name] = found = attacked(PARTS[name], Random(f"{args.seed}/{name}"), share)
        print(
            f"{name:<28}{found['tries']:>9,} tries{found['failures']:>5} failures  "
            f"{found['seconds']:>7.1f} s",
            flush=True,
        )
        for example in found["examples"]:
            print(f"    {example}", flush=True)
    failures = sum(found["failures"] for found in parts.values())
    facts = {
        "seed": args.seed,
        "tries": sum(found["tries"] for found in parts.values()),
        "failures": failures,
        "parts": parts,
    }
    provenance.write(args.out, facts)
    print(f"{facts['tries']:,} tries, {failures} failures; {args.out}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
