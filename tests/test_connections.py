"""What clients can do to connections: say nothing, drip, leave, half-close, come in crowds, come while the server ends."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest
import uvicorn

from alphazero_llm_trainer.serve import connections
from alphazero_llm_trainer.serve.connections import Complaints, Connection, Crowd
from alphazero_llm_trainer.serve.server import Server, listen

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Slow:
    """An application that answers `size` bytes after `seconds`; `gone` counts clients that left before."""

    def __init__(self, seconds: float = 0.0, size: int = 2) -> None:
        self.seconds, self.size, self.gone, self.asked = seconds, size, 0, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        await receive()
        leaving = asyncio.ensure_future(receive())
        done, _ = await asyncio.wait({leaving}, timeout=self.seconds)
        if done:
            self.gone += 1
            return
        leaving.cancel()
        headers = [(b"content-length", str(self.size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * self.size})


def served(
    app: Any, test: Callable[[Callable[[], Awaitable[Client]], Server, Crowd], Awaitable[None]], most: int = 50
) -> None:
    """Run `test` beside a server of `app`; it gets a function that connects."""

    async def main() -> None:
        bound = listen("127.0.0.1", 0)
        bound.listen(100)
        crowd = Crowd(most)
        http = cast(Any, partial(Connection, crowd=crowd))
        config = uvicorn.Config(app, http=http, lifespan="off", log_level="error", timeout_keep_alive=1)
        server = Server(config, 5.0, lambda: None)
        serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        while not server.started:
            await asyncio.sleep(0.01)

        async def connect() -> Client:
            return await asyncio.open_connection(*bound.getsockname())

        try:
            await asyncio.wait_for(test(connect, server, crowd), 30)
        finally:
            server.should_exit = True
            await serving

    asyncio.run(main())


async def answered(client: Client, asked: bytes = ASK) -> bytes:
    """The status line of the answer."""
    reader, writer = client
    writer.write(asked)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    return head.split(b"\r\n")[0]


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)

    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        silent = [await connect() for _ in range(10)]
        for reader, _ in silent:
            assert await asyncio.wait_for(reader.read(), 5) == b""  # it asked nothing, so it is told nothing
        assert not crowd.idle and not server.server_state.connections

    served(Slow(), test)


def test_headers_that_drip_in_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request's and, on a connection that has had an answer, the next one's."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.4)

    async def drip(client: Client) -> bytes:
        """Letter by letter until the server says something."""
        reader, writer = client
        saying = asyncio.ensure_future(reader.read(12))
        for letter in ASK[:-4] + b"X" * 1000:
            writer.write(bytes([letter]))
            done, _ = await asyncio.wait({saying}, timeout=0.05)
            if done:
                break
        return saying.result()

    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        assert (await drip(await connect())).startswith(b"HTTP/1.1 408")
        second = await connect()
        assert b"200" in await answered(second)
        await second[0].readexactly(2)
        assert (await drip(second)).startswith(b"HTTP/1.1 408")

    served(Slow(), test)


def test_endless_headers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        reader, writer = await connect()
        writer.write(ASK[:-2] + b"X-Long: " + b"y" * (connections.HEADER_BYTES + 1))
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 4")

    served(Slow(), test)


def test_silent_connections_keep_nobody_out() -> None:
    """Twice as many of them as there are places; whoever asks something is answered all the while."""

    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        silent = []
        for number in range(40):
            silent.append(await connect())
            if number % 4 == 0:
                assert b"200" in await asyncio.wait_for(answered(await connect()), 5)
        assert len(server.server_state.connections) <= 20
        closed = [reader for reader, _ in silent[:20] if reader.at_eof() or reader.exception() is not None]
        assert len(closed) >= 15  # the longest idle ones

    served(Slow(), test, most=20)


def test_requests_whose_bodies_never_come_keep_nobody_out() -> None:
    """Headers with a body that is still to come hold a place no more than silence does."""

    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        held: list[Client] = []  # or they would be closed at once
        try:
            for number in range(40):
                held.append(await connect())
                held[-1][1].write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx")
                await asyncio.sleep(0.01)
                if number % 4 == 3:
                    assert b"200" in await answered(await connect())
            assert len(server.server_state.connections) <= 20
        finally:
            for _, writer in held:
                writer.close()

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        """It answers once the whole body is there."""
        while (part := await receive())["type"] == "http.request" and part.get("more_body"):
            pass
        if part["type"] == "http.request":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            await send({"type": "http.response.body", "body": b"ok"})

    served(reading, test, most=20)


def test_busy_connections_are_kept_and_one_more_is_told_to_come_later() -> None:
    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        busy = [await connect() for _ in range(8)]
        answers = [asyncio.ensure_future(answered(client)) for client in busy]
        await asyncio.sleep(0.3)
        reader, _ = await connect()
        refusal = await asyncio.wait_for(reader.read(), 5)
        assert refusal.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in refusal
        assert all(b"200" in status for status in await asyncio.gather(*answers))

    served(Slow(1.0), test, most=8)


def test_a_half_closed_client_gets_its_answer() -> None:
    app = Slow(0.5)

    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        reader, writer = await connect()
        writer.write(ASK)
        await asyncio.sleep(0.1)
        writer.write_eof()
        everything = await asyncio.wait_for(reader.read(), 5)
        interim, _, answer = everything.rpartition(connections.INTERIM)
        assert interim + connections.INTERIM == connections.INTERIM * 2 and answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"xx") and app.gone == 0

    served(app, test)


def test_a_client_that_is_gone_is_noticed() -> None:
    app = Slow(5.0)

    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        _, writer = await connect()
        writer.write(ASK)
        await asyncio.sleep(0.2)
        writer.close()
        await asyncio.sleep(0.5)
        assert (app.asked, app.gone) == (1, 1) and not server.server_state.connections

    served(app, test)


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.4)

    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        _, writer = await connect()
        cast(Any, writer.transport).pause_reading()
        writer.write(ASK)
        await asyncio.sleep(1.5)
        assert not server.server_state.connections

    served(Slow(0.0, 50_000_000), test)


def test_a_server_that_ends_goes_on_listening() -> None:
    """Until what is under way has ended; a new client is answered, and the one before it too."""

    async def test(connect: Any, server: Server, crowd: Crowd) -> None:
        first = asyncio.ensure_future(answered(await connect()))
        await asyncio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)
        assert server.ending is not None and not server.should_exit
        assert b"200" in await answered(await connect())
        assert b"200" in await first
        await asyncio.sleep(0.3)
        assert server.should_exit

    served(Slow(1.0), test)


def test_a_full_table_of_descriptors_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    loop, complaints = asyncio.new_event_loop(), Complaints()
    full = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many open files")}
    for _ in range(1000):
        complaints(loop, full)
    assert [record.message for record in caplog.records if "descriptor" in record.message] == [
        "no file descriptor is left for another client ([Errno 24] Too many open files): raise ulimit -n"
    ]
    complaints(loop, {"message": "something else"})
    assert "something else" in caplog.text
    loop.close()


BUDGET = """
import resource
from alphazero_llm_trainer.serve.connections import budget
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(budget(200), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "most"), [(100, 1000, 200), (150, 150, range(50, 87)), (70, 70, None)])
def test_the_budget_of_descriptors(soft: int, hard: int, most: Any) -> None:
    """The soft limit is raised as far as it may be; what is left is what clients may have."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < hard:
        pytest.skip("this machine allows fewer files")
    code = BUDGET.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if most is None:
        assert done.returncode == 1 and "raise ulimit -n" in done.stderr
        return
    found, limit = map(int, done.stdout.split())
    assert found in (most if isinstance(most, range) else [most]) and found + 64 <= limit <= hard
