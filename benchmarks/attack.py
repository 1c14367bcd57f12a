"""Everything that was ever tried to break it, again: bad input, flipped bits, power cuts, kills, full disks, hostile clients
and teachers.

    uv run python benchmarks/attack.py --minutes 20

Each part tries until its share of the time is over, and at least once. A try fails where something crashes with a
traceback, takes over 5 s where it should be refused at once, is lost, is there twice, or differs from an undisturbed run.
Printed: tries and failures of each part, and the first failures in words. The exit code is 1 where there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import httpx  # noqa: E402
import torch  # noqa: E402
from cut_runs import SMALL, TREES, CutSample, CutTrain, product, refused, train_on, trees_of  # noqa: E402
from cut_runs import command as command_line  # noqa: E402
from faults import a_job, forked, keys_of, trees_in, wait_for, what_counts  # noqa: E402
from fuzz import LONGEST_SECONDS, TARGETS, tried  # noqa: E402
from hypothesis import HealthCheck, given, seed, settings  # noqa: E402
from kill_test import COMMANDS  # noqa: E402
from serve import BAD  # noqa: E402
from test_bad_input import LINES  # noqa: E402
from test_teacher_faults import KINDS, ONE, QUESTION, always, play  # noqa: E402

from alphazero_llm_trainer.cli.main import main as command  # noqa: E402
from alphazero_llm_trainer.errors import AlphaZeroError, CheckpointError, ConfigError  # noqa: E402
from alphazero_llm_trainer.files import LOCK, FolderLock, read_sealed, write_sealed  # noqa: E402
from alphazero_llm_trainer.mcts.journal import Journal, line_of  # noqa: E402
from alphazero_llm_trainer.policy.weights import load_sealed, save_sealed  # noqa: E402
from alphazero_llm_trainer.scale.sample import run_sample  # noqa: E402
from alphazero_llm_trainer.teachers.answer import CallError  # noqa: E402
from alphazero_llm_trainer.teachers.client import ChatClient  # noqa: E402
from benchmarks import provenance  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "reliability.json"
EXAMPLES = 5  # failures that are kept in words
CODE = "import sys; from alphazero_llm_trainer.cli.main import main; sys.exit(main())"
LIMITED = "import resource as r; r.setrlimit(r.{limit}, ({most}, {most})); " + CODE
# As nice as Ray makes its actors, they starve where anything else runs.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
FILES, SILENT = 300, 320  # descriptors of the server, and clients that say nothing to it
NEVER = 10**9
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
KILLS = 3  # of a command, a turn
DRAWN = 40  # examples of a fuzzer's target, a turn

# What a try came to: None, or what was wrong.
Tries = Iterator[str | None]


# -- input -------------------------------------------------------------------------------------------------------------


def command_lines(rng: Random, folder: Path) -> Tries:
    """Command lines that can't be: one sentence and exit code 2."""
    for case, (words, named) in LINES.items():
        said, began = io.StringIO(), time.perf_counter()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                code: Any = command(words)
            except SystemExit as stop:
                code = stop.code
        fine = code == 2 and named in said.getvalue() and said.getvalue().strip().count("\n") == 0
        late = time.perf_counter() - began > 10 * LONGEST_SECONDS  # it may import torch first
        yield None if fine and not late else f"{case}: exit code {code}, {said.getvalue()[:200]!r}"


def fuzzers(rng: Random, folder: Path) -> Tries:
    """Configurations, journals, manifests, rows, requests, answers and command lines as hypothesis draws them."""
    for name, target in TARGETS.items():
        wrong: list[str] = []
        tries = 0

        @seed(rng.getrandbits(32))
        @settings(max_examples=DRAWN, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(target.draws())
        def once(drawn: Any) -> None:
            nonlocal tries
            tries += 1
            tried(target, drawn)

        try:
            once()
        except Exception as error:  # noqa: BLE001 - whatever a target raises is the finding
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        yield from [None] * (tries - len(wrong))
        yield from wrong


# -- disks -------------------------------------------------------------------------------------------------------------


def flips(rng: Random, folder: Path) -> Tries:
    """A bit of a journal or of a card: it is noticed, or what is read is what was written."""
    path = folder / "journal.jsonl"
    records = [{"key": f"k{i}", "tree": {"W": [rng.random()], "text": ["a = 3\n"]}} for i in range(5)]
    whole = b"".join(map(line_of, records))
    for _ in range(100):
        at, bit = rng.randrange(len(whole)), rng.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        with contextlib.suppress(AlphaZeroError):
            journal = Journal(path)
            journal.close()
            kept = {one["key"]: one for one in records}
            wrong = [
                key
                for key, found in journal.records.items()
                if key not in kept or any(found.get(name) != value for name, value in kept[key].items())
            ]
            yield f"journal: bit {bit} of byte {at} was not noticed in {wrong}" if wrong else None
            continue
        yield None
    card = folder / "card.json"
    for number in (1, 2):
        write_sealed(card, {"number": number, "config": {"seed": 7}})
    whole = card.read_bytes()
    for _ in range(100):
        at, bit = rng.randrange(len(whole)), rng.randrange(8)
        card.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        found = read_sealed(card)
        fine = found.get("config") == {"seed": 7} and found.get("number") in (1, 2)
        # A flip in the name of the hash leaves a card without one, as older versions wrote them.
        yield None if fine else f"card: bit {bit} of byte {at} was not noticed"


def sample_cuts(rng: Random, folder: Path) -> Tries:
    """Power cuts at every write, rename and sync of a whole run of `sample`, eight kinds of loss each: all that was reported
    is there, and some of what was left goes on to the undisturbed run's trees. Counted are different states of the disk."""
    yield from cut(CutSample(folder, rng, rng.randint(10, 30), keep=3))


def train_cuts(rng: Random, folder: Path) -> Tries:
    """The same of `train`: weights, figures and costs are the undisturbed run's."""
    yield from cut(CutTrain(folder, rng, rng.choice(("grpo", "rft", "ppo")), keep=3, most=5))


def weights(rng: Random, folder: Path) -> Tries:
    """A bit of a file of best weights: it is noticed."""
    path = folder / "best.safetensors"
    save_sealed({"a": torch.arange(15.0).view(5, 3), "b": torch.tensor(2.0)}, path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(100):
        at, bit = rng.randrange(header, len(whole)), rng.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        try:
            load_sealed(path)
            yield f"weights: bit {bit} of byte {at} was not noticed"
        except CheckpointError:
            yield None


def cut(run: CutSample | CutTrain) -> Tries:
    yield from [None] * (run.cuts.states - len(run.cuts.wrong))
    yield from run.cuts.wrong
    yield from run.goes_on()


def sample_refusals(rng: Random, folder: Path) -> Tries:
    """`sample` on a disk that is full, over its quota, read-only or broken from a random write on, or whose folder is removed:
    one sentence and exit code 1, and the run goes on to the undisturbed one's trees."""
    operations, wrong = refused(TREES, folder / "whole", NEVER, errno.EDQUOT)
    yield wrong
    whole = trees_of(folder / "whole")
    for error in (*REFUSED, None):
        first = rng.randrange(operations)
        place = folder / str(error)
        yield refused(TREES, place, first, error)[1]
        if error is not None:
            code, said = command_line((*TREES[:-1], "--resume", "--out", str(place)))
            fine = code == 0 and trees_of(place) == whole
            yield (
                None if fine else f"after {os.strerror(error)} at operation {first}: exit code {code}, {said[-300:]!r}"
            )


def train_refusals(rng: Random, folder: Path) -> Tries:
    """The same of `train`."""
    words = ("-q", "train", f"--use-{rng.choice(('grpo', 'rft', 'ppo'))}", *SMALL, "--checkpoint-dir")
    operations, wrong = refused(words, folder / "whole", NEVER, errno.EDQUOT)
    yield wrong
    whole = product(folder / "whole")
    for error in (*REFUSED, None):
        place = folder / str(error)
        yield refused(words, place, rng.randrange(operations), error)[1]
        if error is not None:
            yield train_on(words, place, whole)


def small_files(rng: Random, folder: Path) -> Tries:
    """`sample` and `train` where files may not grow beyond some size: one sentence and exit code 1, and a run without the limit
    goes on."""
    train, train_again = ("-q", "train", "--use-grpo", *SMALL), ("-q", "train", "--resume")
    for words, again, flag, most in (
        (TREES[:-1], (*TREES[:-1], "--resume"), "--out", rng.choice((1_000, 2_000, 3_000))),
        (train, train_again, "--checkpoint-dir", rng.choice((60_000, 1_000_000, 4_000_000))),
    ):
        place = str(folder / words[1])
        done = run([LIMITED.format(limit="RLIMIT_FSIZE", most=most), *words, flag, place])
        said = done.stderr.strip().splitlines()
        fine = done.returncode == 1 and said[-1:] and said[-1].startswith("error: ") and "Traceback" not in done.stderr
        yield None if fine else f"files of {most} bytes: exit code {done.returncode}, {done.stderr[-300:]!r}"
        done = run([CODE, *again, flag, place])
        yield (
            None if done.returncode == 0 else f"after files of {most} bytes: {done.returncode}, {done.stderr[-300:]!r}"
        )


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Python code with its arguments in a process of its own."""
    return subprocess.run([sys.executable, "-c", *words], env=ENVIRONMENT, capture_output=True, text=True, check=False)


# -- processes ---------------------------------------------------------------------------------------------------------


def locks(rng: Random, folder: Path) -> Tries:
    """A folder that another process holds is refused with that process's number, and free as soon as it was killed."""
    holder = forked(lambda: (FolderLock(folder), time.sleep(60)))
    try:
        wait_for(lambda: (folder / LOCK).is_file() and (folder / LOCK).read_text().endswith("\n"))
        try:
            FolderLock(folder).release()
            yield "a held folder was given to a second process"
        except ConfigError as error:
            yield None if f"process {holder.pid}" in str(error) else f"the lock's holder isn't named: {error}"
    finally:
        holder.kill()
        holder.join()
    try:
        FolderLock(folder).release()
        yield None
    except ConfigError as error:
        yield f"a dead process holds the lock: {error}"
    with FolderLock(folder):
        for name in ("sft", "value", "prm", "sample", "eval"):
            size = ("-n", "10") if name in ("value", "prm", "sample", "eval") else ()
            code, said = command_line(("-q", name, *size, "--out", str(folder)))
            fine = code == 2 and f"process {os.getpid()}" in said
            yield None if fine else f"a second {name} of a held folder: exit code {code}, {said[-200:]!r}"


def kills(rng: Random, folder: Path) -> Tries:
    """SIGKILL at random moments of `sample`, until it is through; its trees are an undisturbed run's."""
    job, out = a_job(30), folder / "killed"
    run_sample(job, folder / "whole")
    whole = {key: what_counts(record) for key, record in trees_in(folder / "whole").items()}
    done, tries = False, 0
    while not done and tries < 40:
        child = forked(lambda: run_sample(job, out, resume=True))
        child.join(rng.uniform(0.05, 1.0 + 0.2 * tries))
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        done = child.exitcode == 0  # it may have ended just before the kill
        tries += 1
        if not done:
            yield None if child.exitcode == -signal.SIGKILL else f"a resumed run ended with exit code {child.exitcode}"
    found = {key: what_counts(record) for key, record in trees_in(out).items()}
    fine = found == whole and set(found) == set(keys_of(job))
    yield None if fine else f"after {tries} kills there are {len(found)} trees, not the undisturbed run's {len(whole)}"


def killed_commands(rng: Random, folder: Path) -> Tries:
    """SIGKILL at random moments of `train`, `ppo`, `eval`, `value` or `prm`, as kill_test.py does: what comes of it
    is an undisturbed run's, to the byte."""
    name, out = rng.choice(list(COMMANDS)), folder / "kills.json"
    words = ("--kills", str(KILLS), "--seed", str(rng.getrandbits(16)), "--commands", name, "--out", str(out))
    done = script("kill_test.py", *words)
    if not out.is_file():
        yield f"{name}: {done.stderr[-300:]!r}"
        return
    found = json.loads(out.read_text())["commands"][name]
    yield from [None] * (found["kills"] - found["failures"])
    yield from [f"{name} ended with an error when it was resumed: {done.stdout[-300:]!r}"] * found["failures"]
    yield f"{name} killed: {found['differ']} differ" if found["differ"] else None


def killed_actors(rng: Random, folder: Path) -> Tries:
    """SIGKILL of `sample`'s driver and actors under Ray, as kill_test.py does: each tree once, and an undisturbed run's."""
    out = folder / "kills.json"
    words = ("--kills", str(KILLS), "--questions", "60", "--iterations", "8", "--seed", str(rng.getrandbits(16)))
    done = script("kill_test.py", *words, "--out", str(out))
    yield from [None] * (json.loads(out.read_text())["kills_in_all"] if out.is_file() else 0)
    yield None if done.returncode == 0 else f"exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]!r}"


def script(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Another benchmark, in a process of its own."""
    line = [sys.executable, str(Path(__file__).with_name(name)), *words]
    return subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, check=False)


# -- strangers ---------------------------------------------------------------------------------------------------------


def teachers(rng: Random, folder: Path) -> Tries:
    """A provider that misbehaves in every known way: an error of its kind, in time, without its words."""
    for fault, kind in KINDS.items():

        async def use(endpoint: Any) -> str | None:
            try:
                await asyncio.wait_for(ChatClient(endpoint, ONE).complete(QUESTION), 30)
            except CallError as error:
                return None if error.kind is kind else f"{fault}: {error}"
            return f"{fault}: it counts as an answer"

        yield play(always(fault), use, timeout_seconds=2.0)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int, subprocess.Popen[str]]]:
    """`serve` with FILES descriptors: its address, port and process."""

    limited = [sys.executable, "-c", LIMITED.format(limit="RLIMIT_NOFILE", most=FILES)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*limited, "serve", "--model", "embedded", "--port", "0"],
            env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http")).removesuffix("/v1")
        yield url, int(url.rpartition(":")[2]), process
    finally:
        process.kill()
        process.wait()


def healthy(url: str) -> float:
    """Seconds until `/health` has answered a new connection."""
    began = time.perf_counter()
    httpx.get(f"{url}/health", timeout=LONGEST_SECONDS).raise_for_status()
    return time.perf_counter() - began


def clients(rng: Random, folder: Path) -> Tries:
    """Silent clients in crowds, half-closed ones, made-up requests, and one that comes while the server ends."""
    with serving(folder) as (url, port, process):
        alone = healthy(url)
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(SILENT)]
        for _ in range(10):
            try:
                seconds = healthy(url)
            except httpx.HTTPError as error:
                yield f"{SILENT} silent clients: {type(error).__name__}"
                continue
            yield None if seconds < alone + 1.0 else f"{SILENT} silent clients: {seconds:.1f} s instead of {alone:.1f}"
            time.sleep(0.3)
        for one in silent:
            one.close()
        body = json.dumps({"model": "student", "messages": [{"role": "user", "content": "1 and 2?"}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(head + body)
            half.shutdown(socket.SHUT_WR)
            half.settimeout(30)
            heard = b""
            with contextlib.suppress(TimeoutError):
                while chunk := half.recv(65536):
                    heard += chunk
        yield None if b" 200 OK" in heard else f"a half-closed client heard {heard[:100]!r}"
        for wrong in (*BAD, b'{"model": "' + b"x" * 5000 + b'"}'):
            answer = httpx.post(f"{url}/v1/chat/completions", content=wrong, timeout=30)
            fine = 400 <= answer.status_code < 500 and len(answer.content) < 2000
            yield (
                None
                if fine
                else f"a wrong request: {answer.status_code}, {len(answer.content)} bytes for {wrong[:80]!r}"
            )
        stranger = httpx.get(f"{url}/v1/models", headers={"Host": "elsewhere.example"}, timeout=30)
        yield None if stranger.status_code >= 400 else "a foreign Host was answered"
        for _ in range(100):
            raw = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 300)))
            made_up = rng.choice((body[: rng.randrange(len(body))], raw, body.replace(b"1", raw)))
            try:
                answer = httpx.post(f"{url}/v1/chat/completions", content=made_up, timeout=30)
                fine = 400 <= answer.status_code < 500 or answer.status_code == 200
                yield None if fine else f"a made-up request: {answer.status_code} for {made_up[:100]!r}"
            except httpx.HTTPError as error:
                yield f"a made-up request: {type(error).__name__} for {made_up[:100]!r}"
        long = {"model": "student", "method": "beam", "budget_tokens": 20_000, "n": 4}
        long["messages"] = [{"role": "user", "content": "Ana has 13 apples and buys 14 more, then eats 5. How many?"}]
        with socket.create_connection(("127.0.0.1", port)) as under_way:
            asked = json.dumps(long).encode()
            under_way.sendall(head.replace(str(len(body)).encode(), str(len(asked)).encode(), 1) + asked)
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            try:
                late = httpx.get(f"{url}/v1/models", timeout=LONGEST_SECONDS)
                fine = late.status_code == 503 and "retry-after" in late.headers
                yield None if fine else f"after SIGTERM: {late.status_code}"
            except httpx.HTTPError as error:
                gone = process.poll() is not None  # the long request was a short one: nothing was under way
                yield None if gone else f"after SIGTERM: {type(error).__name__}"
        process.wait(60)
        yield None if process.returncode == 0 else f"the server ended with exit code {process.returncode}"
    size = (folder / "log").stat().st_size
    yield None if size < 100_000 else f"the log has {size:,} bytes"


def crowds(rng: Random, folder: Path) -> Tries:
    """64 clients with all methods, while every second one goes in the middle of a search and another asks for something wrong,
    as serve.py's soak: no error, and nothing live afterwards. Lateness has a page of its own."""
    out = folder / "soak.json"
    done = script("serve.py", "--soak", "0.5", "--out", str(out))
    if not out.is_file():
        yield f"exit code {done.returncode}: {done.stderr[-300:]!r}"
        return
    found = json.loads(out.read_text())
    failed = sum(found["errors"].values())
    yield from [None] * (found["requests"] - failed + found["clients_gone"])
    yield from [f"a request failed: {found['errors']}"] * failed
    live = {name: found["after"][name] for name in ("live_searches", "live_requests", "engine_live_rows")}
    yield f"live afterwards: {live}" if any(live.values()) else None
    fine = found["exit_code"] == 0 and not found["failed"] and set(found["wrong_requests"]) <= {"400"}
    yield None if fine else f"exit code {found['exit_code']}, wrong requests {found['wrong_requests']}"


# -- all of it ---------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Random, Path], Tries]] = {
    "command lines that can't be": command_lines,
    "drawn by hypothesis": fuzzers,
    "flipped bits": flips,
    "flipped bits of weights": weights,
    "power cuts of sample": sample_cuts,
    "power cuts of train": train_cuts,
    "disks that refuse sample": sample_refusals,
    "disks that refuse train": train_refusals,
    "locks": locks,
    "kills of sample": kills,
    "kills of other commands": killed_commands,
    "kills under Ray": killed_actors,
    "hostile teachers": teachers,
    "hostile clients": clients,
    "crowds of clients": crowds,
    "files that may not grow": small_files,
}
# Once through takes a minute and more: they are left out of a shorter attack than LONG_MINUTES, unless they are named.
LONG = (
    "power cuts of train",
    "disks that refuse train",
    "kills of other commands",
    "kills under Ray",
    "crowds of clients",
)
LONG_MINUTES = 5.0


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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="all parts together, about (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--only", choices=PARTS, nargs="+", metavar="PART",
        help=f"some of the parts (default: all; below {LONG_MINUTES:g} minutes without {', '.join(LONG)})",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file (default: %(default)s)")
    args = parser.parse_args(argv)
    # A forked child of a process with a pool of threads waits for threads that it doesn't have.
    torch.set_num_threads(1)
    names = args.only or [name for name in PARTS if args.minutes >= LONG_MINUTES or name not in LONG]
    share, parts = 60 * args.minutes / len(names), {}
    for name in names:
        parts[name] = found = attacked(PARTS[name], Random(f"{args.seed}/{name}"), share)
        print(
            f"{name:<28}{found['tries']:>9,} tries{found['failures']:>5} failures  {found['seconds']:>7.1f} s",
            flush=True,
        )
        for example in found["examples"]:
            print(f"    {example}", flush=True)
    failures = sum(found["failures"] for found in parts.values())
    facts = {
        "command": f"python benchmarks/attack.py --minutes {args.minutes:g} --seed {args.seed}",
        "seed": args.seed,
        "tries": sum(found["tries"] for found in parts.values()),
        "failures": failures,
        "parts": parts,
    }
    provenance.write(args.out, "reliability", facts)
    print(f"{facts['tries']:,} tries, {failures} failures; {args.out}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
