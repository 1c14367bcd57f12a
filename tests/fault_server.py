"""An OpenAI-compatible server on loopback that misbehaves in every way that providers do, and
counts what it charges.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

# What arrives as a whole answer with its usage, and can be read.
GOOD = ("ok", "ok-think", "ok-cached-tokens")
# Answers that arrive and are charged, but say nothing usable.
SILENT = ("refusal", "no-content", "thinks")
# Charged by the server, although the client never gets to see the answer.
LOST = ("hang", "drip", "cut", "html")
# Not charged.
FREE = ("307", "429", "500", "close", "error-200", "400")
FAULTS = (*GOOD, "ok-no-usage", *SILENT, *LOST, *FREE)
STATUS = {"400", "429", "500"}


@dataclass(frozen=True, slots=True)
class Served:
    """One request: the fault it met, and what the server charged for it. `told` is False where no
    usage was sent.
    """

    fault: str
    model: str
    prompt: int
    sampled: int
    dollars: float
    told: bool


class FaultServer:
    """Answers each request as `choose(number, request)` says, with the text of `write(request)`.

    Args:
        choose: the fault of request `number` (one of `FAULTS`).
        write: the next step that a model would give.
        prices: dollars per million (prompt, completion) tokens by model.
        hang: seconds of a "hang" or "drip"; it ends when the client leaves.
        echo: text that error pages repeat, as careless providers do with keys.
    """

    def __init__(
        self,
        choose: Callable[[int, dict[str, Any]], str],
        write: Callable[[dict[str, Any]], str] = lambda request: "3 + 4 = 7",
        *,
        prices: dict[str, tuple[float, float]] | None = None,
        hang: float = 20.0,
        echo: str = "",
    ) -> None:
        self.choose, self.write, self.prices, self.hang, self.echo = (
            choose,
            write,
            prices or {},
            hang,
            echo,
        )
        self.served: list[Served] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.live = self.most_live = 0

    @contextmanager
    def running(self) -> Iterator[str]:
        """The base URL of the server, which runs on a thread and an event loop of its own."""
        loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
        port: list[int] = []

        async def serve() -> None:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", self._handle)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port.append(runner.addresses[0][1])
            ready.set()
            await done.wait()
            await runner.cleanup()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
        thread.start()
        ready.wait(10)
        try:
            yield f"http://127.0.0.1:{port[0]}/v1"
        finally:
            loop.call_soon_threadsafe(done.set)
            thread.join(10)
            loop.close()

    def charged(self, *, told: bool | None = None) -> tuple[int, float]:
        """Tokens and dollars that were charged, in all or for the answers whose usage was sent (or
        not).
        """
        chosen = [one for one in self.served if told is None or one.told is told]
        return sum(one.prompt + one.sampled for one in chosen), sum(one.dollars for one in chosen)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        number = len(self.requests)
        self.requests.append(asked)
        self.keys.add(request.headers.get("Authorization", ""))
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        fault = self.choose(number, asked)
        try:
            return await self._answered(request, asked, fault)
        finally:
            self.live -= 1

    async def _answered(
        self, request: web.Request, asked: dict[str, Any], fault: str
    ) -> web.StreamResponse:
        text = self.write(asked)
        prompt = sum(len(message["content"]) for message in asked["messages"]) // 4 + 3
        limit = asked["max_tokens"]
        written = text
        if fault == "ok-think":
            written += "so the numbers add up " * 4
        sampled = limit if fault == "thinks" else min(limit, len(written) // 4 + 2)
        told = fault not in (*LOST, *FREE, "ok-no-usage")
        if fault in FREE:
            self.served.append(Served(fault, asked["model"], 0, 0, 0.0, False))
        else:
            price = self.prices.get(asked["model"], (0.0, 0.0))
            dollars = (prompt * price[0] + sampled * price[1]) / 1e6
            self.served.append(Served(fault, asked["model"], prompt, sampled, dollars, told))
        message: dict[str, Any] = {"role": "assistant", "content": text}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": sampled}
        body: dict[str, Any] = {
            "id": "x",
            "model": asked["model"],
            "choices": [choice],
            "usage": usage,
        }
        if fault == "ok-think":
            message["content"] = f"<think>so the numbers add up</think>\n{text}"
        elif fault == "ok-cached-tokens":
            usage["prompt_tokens_details"] = {"cached_tokens": prompt // 2}
        elif fault == "ok-no-usage":
            del body["usage"]
        elif fault == "thinks":
            message.update(content=None, reasoning_content="and then " * 500)
            choice["finish_reason"] = "length"
        elif fault == "refusal":
            message.update(content=None, refusal="I can't help with that.")
        elif fault == "no-content":
            message["content"] = None
        elif fault not in GOOD:
            return await self._broken(request, fault, body)
        return web.json_response(body)

    async def _broken(
        self, request: web.Request, fault: str, body: dict[str, Any]
    ) -> web.StreamResponse:
        whole = json.dumps(body).encode()
        if fault in STATUS:
            error = {"message": f"no: {self.echo}", "code": int(fault)}
            return web.json_response(
                {"error": error}, status=int(fault), headers={"Retry-After": "0.01"}
            )
        if fault == "307":
            # This very server under its other name: another host, as a client sees it.
            return web.Response(
                status=307, headers={"Location": str(request.url.with_host("localhost"))}
            )
        if fault == "error-200":
            return web.json_response({"error": {"code": 502, "message": f"upstream: {self.echo}"}})
        if fault == "html":
            return web.Response(text=f"<html>busy {self.echo}</html>", content_type="text/html")
        return await self._streamed(request, fault, whole)

    async def _streamed(self, request: web.Request, fault: str, whole: bytes) -> web.StreamResponse:
        """Faults of the connection itself."""
        transport = request.transport
        assert transport is not None
        if fault == "close":
            transport.close()
            return web.Response()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if fault == "cut":
            response.content_length = len(whole)
            await response.prepare(request)
            await response.write(whole[: len(whole) // 2])
            transport.close()
            return response
        if fault == "drip":
            await response.prepare(request)
            await self._until_gone(transport, response)
            return response
        await self._until_gone(transport, None)
        return web.Response(body=whole, content_type="application/json")

    async def _until_gone(
        self, transport: asyncio.Transport, response: web.StreamResponse | None
    ) -> None:
        """Drip spaces, or nothing, until the client leaves or `hang` seconds are over."""
        for _ in range(int(self.hang / 0.05)):
            if transport.is_closing():
                return
            if response is not None:
                try:
                    await response.write(b" ")
                except ConnectionError:
                    return
            await asyncio.sleep(0.05)
