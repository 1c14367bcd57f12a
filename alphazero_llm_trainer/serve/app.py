"""The OpenAI-compatible application: who may ask, routes, streaming, and what happens when a client goes away."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from .requests import INTERNAL, ApiError, Wanted, chat_request, completion_request
from .server import is_loopback
from .service import Service, Trace
from .wire import event

OPEN = "/health"  # asked by machines that hold no key
GONE = 499  # what nobody reads
MAX_BODY_BYTES = 1 << 20  # of one request
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
        return Response(service.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def model(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": service.created, "owned_by": "alphazero-llm-trainer"}

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model(name) for name in service.models.listed]})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        service.models.of(name)
        return JSONResponse(model(name))

    def read_chat(raw: bytes) -> list[Wanted]:
        return [chat_request(raw, service.student, service.models, service.settings)]

    def read_completion(raw: bytes) -> list[Wanted]:
        return completion_request(raw, service.student, service.models, service.settings)

    async def chat(request: Request) -> Response:
        return await answer(request, service, read_chat)

    async def completion(request: Request) -> Response:
        return await answer(request, service, read_completion)

    async def trace(request: Request) -> Response:
        # In a thread, as is the page: a large tree takes a while, and others wait for the event loop.
        found = service.trace(request.path_params["name"])
        line = await asyncio.to_thread(lambda: json.dumps(found.record()))
        return Response(line, media_type="application/json", headers={"Cache-Control": "no-store"})

    async def trace_page(request: Request) -> Response:
        page = await asyncio.to_thread(page_of, service.trace(request.path_params["name"]), service)
        return HTMLResponse(page, headers=PAGE_HEADERS)

    return Starlette(
        routes=[
            Route(OPEN, health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/models/{name}", one_model),
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completion, methods=["POST"]),
            Route("/v1/traces/{name}", trace),
            Route("/traces/{name}", trace_page),
        ],
        middleware=[Middleware(Door, keys=keys, loopback=loopback)],
        exception_handlers={ApiError: refused, HTTPException: refused, Exception: refused},
    )


async def refused(request: Request, error: Exception) -> Response:
    """The answer to a request that can't be served; what broke here Starlette raises again, for the log."""
    if isinstance(error, HTTPException):
        known = "see /v1/models, /v1/chat/completions and /v1/completions"
        error = ApiError(f"{error.detail}: {known}", error.status_code, code="not_found")
    return (error if isinstance(error, ApiError) else INTERNAL).response


def page_of(trace: Trace, service: Service) -> str:
    """The viewer's page of a trace."""
    from ..viewer.page import tree_page
    from ..viewer.record import pieces

    record = trace.record()
    return tree_page({**record, "pieces": pieces(record, service.student.decode, {})}, title=trace.name)


# -- the door ----------------------------------------------------------------------------------------------------------


class Door:
    """ASGI middleware: host, origin and key are checked before a request is read.

    Args:
        app: what is behind the door.
        keys: any one of them opens; none: open to whoever can reach the address.
        loopback: the server listens on this machine alone, so a request for another host comes from a web page that
            made its name point here (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], loopback: bool) -> None:
        self.app, self.loopback = app, loopback
        self.keys = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self.refusal(scope["path"], Headers(scope=scope))
        await (self.app if error is None else error.response)(scope, receive, send)

    def refusal(self, path: str, headers: Headers) -> ApiError | None:
        """Why a request may not pass."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if self.loopback and not is_loopback(host_of(host)):
            return ApiError("this server answers requests to its own address alone", 421, code="wrong_host")
        if origin is not None and origin.partition("://")[2].lower() != host:
            return ApiError("requests from other web pages are refused", 403, code="wrong_origin")
        if self.keys and path != OPEN and not self.opens(headers.get("authorization", "")):
            missing = "the API key is missing or wrong: send `Authorization: Bearer KEY`"
            asked = {"WWW-Authenticate": 'Basic realm="alphazero-llm-trainer"'}  # browsers ask for a password then
            return ApiError(missing, 401, code="invalid_api_key", headers=asked)
        return None

    def opens(self, authorization: str) -> bool:
        """Whether a header holds one of the keys, as a token or as a password. The time it takes says nothing about them."""
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except ValueError:
                return False
        digest = hashlib.sha256(given.strip().encode()).digest()
        return any([hmac.compare_digest(digest, key) for key in self.keys])


def host_of(header: str) -> str:
    """The host of a `Host` header, without its port; "" where there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


# -- an answer ---------------------------------------------------------------------------------------------------------


async def answer(request: Request, service: Service, read: Callable[[bytes], list[Wanted]]) -> Response:
    """The response to a request whose body `read` takes. When its client goes, whatever works on it is cancelled."""
    arrived = asyncio.get_running_loop().time()
    raw = b""
    try:
        async for part in request.stream():
            raw += part
            if len(raw) > MAX_BODY_BYTES:
                large = f"the body is larger than {MAX_BODY_BYTES} bytes: send less"
                raise ApiError(large, 413, code="request_too_large")
    except ClientDisconnect:
        return Response(status_code=GONE)
    asked = read(raw)
    chunks: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    work = asyncio.ensure_future(service(asked, arrived, chunks.put_nowait))
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
            yield event((error if isinstance(error, ApiError) else INTERNAL).body)
        yield event("[DONE]")
        if error is not None and not isinstance(error, ApiError):
            raise error  # for the log
