"""A server on loopback for what this package asks over HTTP, and an OpenAI-compatible one that
answers as a test says, misbehaves in every way that providers do, and counts what it charges.
"""

import asyncio
import json
from dataclasses import dataclass

from aiohttp import web
from tables import table

from alphazero_llm_trainer.engine.background import LoopThread

# What a fault makes of a whole answer's message.
MESSAGES = {
    "ok": {},
    "ok-think": {"content": "<think>so the numbers add up</think>\n3 + 4 = 7"},
    "ok-cached-tokens": {},
    "ok-no-usage": {},
    "refusal": {"content": None, "refusal": "I can't help with that."},
    "no-content": {"content": None},
    "thinks": {"content": None, "reasoning_content": "and then " * 500},
}
ODD = {case["name"]: case for case in table("servers")["replies"]}
GOOD = ("ok", "ok-think", "ok-cached-tokens")
STATUS = ("307", "400", "429", "500")
FREE = (*STATUS, "close", "error-200")  # not charged
FAULTS = (*MESSAGES, *FREE, "hang", "drip", "cut", "html")


class FakeServer:
    """Has `respond(request)` answer what comes to `route`, on a thread and an event loop of its
    own. Entered, it is its base URL.
    """

    route = "/v1/chat/completions"

    def running(self):
        return self

    def __enter__(self):
        self.thread = LoopThread("fake server")
        return self.thread.wait(self._start())

    async def _start(self):
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", self.route, self.respond)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0, backlog=256).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}/v1"

    def __exit__(self, *error):
        self.thread.wait(self.runner.cleanup())
        self.thread.close()


@dataclass(frozen=True, slots=True)
class Served:
    """What the server charged for a request; `told` is False where no usage was sent."""

    prompt: int
    sampled: int
    dollars: float
    told: bool


class FaultServer(FakeServer):
    """Answers request `number` with the fault that `choose(number, body)` names, and the text of
    `write(body)`, which may be a pair with the prompt's tokens. A fault may be a status and its
    body, too. A streamed reply is that of `servers.yaml` by the fault's name, or `write`'s.

    Args:
        prices: dollars per million (prompt, completion) tokens by model.
        hang: seconds of a "hang" or "drip"; it ends when the client leaves.
        echo: text that error pages repeat, as careless providers do with keys.
    """

    def __init__(
        self, choose=lambda number, body: "ok", write=lambda body: "3 + 4 = 7", *,
        prices=None, hang=20.0, echo="",
    ):  # fmt: skip
        self.choose, self.write, self.prices = choose, write, prices or {}
        self.hang, self.echo = hang, echo
        self.served, self.requests, self.keys = [], [], set()
        self.live = self.most_live = 0

    def charged(self, *, told=None):
        """Tokens and dollars that were charged, in all or where usage was sent (or not)."""
        chosen = [one for one in self.served if told is None or one.told is told]
        return sum(one.prompt + one.sampled for one in chosen), sum(one.dollars for one in chosen)

    async def respond(self, request):
        body = await request.json()
        fault = self.choose(len(self.requests), body)
        self.requests.append(body)
        self.keys.add(request.headers.get("Authorization", ""))
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            if isinstance(fault, tuple):
                return web.json_response(fault[1], status=fault[0])
            if body.get("stream"):
                return await self._streamed(request, body, fault)
            answer = self._answer(body, fault)
            if fault in MESSAGES:
                return web.json_response(answer)
            return await self._broken(request, fault, json.dumps(answer).encode())
        finally:
            self.live -= 1

    def _answer(self, body, fault):
        text = self.write(body)
        prompt = sum(len(message["content"]) for message in body["messages"]) // 4 + 3
        text, prompt = text if isinstance(text, tuple) else (text, prompt)
        message = {"role": "assistant", "content": text} | MESSAGES.get(fault, {})
        sampled = body.get("max_tokens", 1000)
        if fault != "thinks":
            sampled = min(sampled, len(message["content"] or text) // 4 + 2)
        prices = self.prices.get(body["model"], (0.0, 0.0))
        dollars = (prompt * prices[0] + sampled * prices[1]) / 1e6
        charged = (0, 0, 0.0) if fault in FREE else (prompt, sampled, dollars)
        self.served.append(Served(*charged, fault in MESSAGES and fault != "ok-no-usage"))
        usage = {"prompt_tokens": prompt, "completion_tokens": sampled}
        usage["total_tokens"] = prompt + sampled
        if fault == "ok-cached-tokens":
            usage["prompt_tokens_details"] = {"cached_tokens": prompt // 2}
        finish = "length" if fault == "thinks" else "stop"
        choice = {"index": 0, "finish_reason": finish, "message": message}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"]}
        usage = {} if fault == "ok-no-usage" else {"usage": usage}
        return answer | {"choices": [choice]} | usage

    async def _streamed(self, request, body, fault):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        most = body.get("max_tokens", body.get("max_completion_tokens"))
        odd = fault in ODD and most > 1
        says = ODD[fault]["says"] if odd else said(self.write(body), most)
        await response.write(says.encode())
        return response

    async def _broken(self, request, fault, whole):
        if fault == "307":
            # This very server under its other name: another host, as a client sees it.
            place = str(request.url.with_host("localhost"))
            return web.Response(status=307, headers={"Location": place})
        if fault.isdigit() or fault == "error-200":
            code = 502 if fault == "error-200" else int(fault)
            error = {"error": {"message": f"no: {self.echo}", "code": code}}
            status, again = (200, {}) if code == 502 else (code, {"Retry-After": "0.01"})
            return web.json_response(error, status=status, headers=again)
        if fault == "html":
            return web.Response(text=f"<html>busy {self.echo}</html>", content_type="text/html")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if fault == "cut":
            response.content_length = len(whole)
        if fault in ("cut", "drip"):
            await response.prepare(request)
        if fault == "cut":
            await response.write(whole[: len(whole) // 2])
        if fault in ("cut", "close"):
            request.transport.close()
            return response
        for _ in range(int(self.hang / 0.05)):
            if request.transport is None or request.transport.is_closing():
                return response
            if fault == "drip":
                try:
                    await response.write(b" ")
                except ConnectionError:
                    return response
            await asyncio.sleep(0.05)
        return web.Response(body=whole, content_type="application/json")


def said(text, most):
    """The events of a plain streamed reply, with usage."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": min(most, 5)}
    bodies = {"choices": [choice]}, {"choices": [], "usage": usage}
    events = [*map(json.dumps, bodies), "[DONE]"]
    return "".join(f"data: {event}\n\n" for event in events)
