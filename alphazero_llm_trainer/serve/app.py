"""The OpenAI-compatible application: routes, error shapes, streaming, and what happens when a client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from .door import Door, Receive, Scope, Send
from .failures import ApiError, internal
from .requests import chat_request
from .service import Service
from .traces import Trace
from .wire import event

GONE = 499  # what nobody reads
MAX_BODY_BYTES = 1 << 20  # of one request
BODY_SECONDS = 60.0  # to read a request's body
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def make_app(service: Service, keys: Sequence[str] = (), loopback: bool = True) -> Starlette:
    """The application over a service. `keys` and `loopback`: see Door."""

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "live": service.live, "waiting": service.waiting})

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def model(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": service.created, "owned_by": "alphazero-llm-trainer"}

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model(name) for name in service.models.listed]})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        service.models.of(name)
        return JSONResponse(model(name))

    async def chat(request: Request) -> Response:
        return await answer(request, service)

    async def trace(request: Request) -> Response:
        # In a thread, as is the page: a large tree takes a while, and others wait for the event loop.
        found = service.traces.get(request.path_params["name"])
        line = await asyncio.to_thread(lambda: json.dumps(found.record()))
        return Response(line, media_type="application/json", headers={"Cache-Control": "no-store"})

    async def trace_page(request: Request) -> Response:
        page = await asyncio.to_thread(page_of, service.traces.get(request.path_params["name"]), service)
        return HTMLResponse(page, headers=PAGE_HEADERS)

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{name}", one_model),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/traces/{name}", trace),
            Route("/traces/{name}", trace_page),
        ],
        middleware=[Middleware(Door, keys=keys, loopback=loopback, most=MAX_BODY_BYTES)],
        exception_handlers={ApiError: refused, HTTPException: no_route, Exception: broken},
    )


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response


async def no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = "see /v1/models and /v1/chat/completions"
    return ApiError(f"{error.detail}: {known}", error.status_code, code="not_found").response


async def broken(request: Request, error: Exception) -> Response:
    return internal().response  # Starlette raises it again for the log


def page_of(trace: Trace, service: Service) -> str:
    """The viewer's page of a trace."""
    from ..viewer.page import tree_page
    from ..viewer.record import pieces

    record = trace.record()
    return tree_page({**record, "pieces": pieces(record, service.student.decode, {})}, title=trace.name)


async def answer(request: Request, service: Service) -> Response:
    """The response to a chat request. When its client goes, whatever works on it is cancelled."""
    arrived = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            raw = await request.body()
    except ClientDisconnect:
        return Response(status_code=GONE)
    except TimeoutError as error:
        late = f"the body didn't come within {BODY_SECONDS:g} seconds: send it faster"
        raise ApiError(late, 408, code="request_timeout", headers={"Connection": "close"}) from error
    wanted = chat_request(raw, service.student, service.context, service.models, service.settings)
    chunks: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    work = asyncio.ensure_future(service(wanted, arrived, chunks.put_nowait))
    work.add_done_callback(lambda _: chunks.put_nowait(None))
    gone = asyncio.ensure_future(disconnected(request.receive))
    gone.add_done_callback(lambda _: gone.cancelled() or work.cancel())
    first = None
    try:
        first = await chunks.get()
        if first is not None:
            return Events(first, chunks, work)
        return Response(status_code=GONE) if work.cancelled() else JSONResponse(work.result())
    finally:
        gone.cancel()
        if first is None:
            work.cancel()


async def disconnected(receive: Receive) -> None:
    """Wait until the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Events(StreamingResponse):
    """Server-sent events of an answer under way, which ends when its client goes."""

    def __init__(
        self, first: dict[str, Any], chunks: asyncio.Queue[dict[str, Any] | None], work: asyncio.Future[Any]
    ) -> None:
        headers = {"Cache-Control": "no-cache"}
        super().__init__(self.events(first, chunks), media_type="text/event-stream", headers=headers)
        self.work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.work.cancel()

    async def events(self, first: dict[str, Any], chunks: asyncio.Queue[dict[str, Any] | None]) -> AsyncIterator[bytes]:
        """The chunks; an error among them is the last event before the end."""
        chunk: dict[str, Any] | None = first
        while chunk is not None:
            yield event(chunk)
            chunk = await chunks.get()
        error = None if self.work.cancelled() else self.work.exception()
        if error is not None:
            yield event(error.body if isinstance(error, ApiError) else internal().body)
        yield event("[DONE]")
        if error is not None and not isinstance(error, ApiError):
            raise error  # for the log
