"""The HTTP side: routes, error shapes, streaming, and what happens when a client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from .failures import ApiError, ending
from .guard import Guard, Receive, Scope, Send
from .names import MCTS, STUDENT
from .prometheus import NOBODY
from .service import ServedAnswer, Service
from .traces import Trace
from .wanted import Wanted, chat_request, completion_request
from .wire import event

GONE = "gone"
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


def make_app(service: Service, keys: Sequence[str], loopback: bool) -> FastAPI:
    """The application over a service. `keys`: see Guard."""
    app = FastAPI(title="alphazero-llm-trainer", docs_url=None, redoc_url=None, openapi_url=None)
    most = service.settings.max_body_bytes
    app.add_middleware(Guard, refuse=refusal, keys=keys, loopback=loopback, most=most, closed=service.closed)

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return refusal(error)

    @app.exception_handler(HTTPException)
    @app.exception_handler(AnyHTTPException)
    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, AnyHTTPException)
        known = "see /v1/models, /v1/chat/completions and /v1/completions"
        return refusal(ApiError(f"{error.detail}: {known}", error.status_code, code="not_found"))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        # Starlette raises it again for the log; the client learns nothing of this machine.
        return refusal(internal())

    @app.get("/health")
    async def health() -> dict[str, Any]:
        queue = service.queue
        return {"status": "ok", "live": queue.live, "waiting": queue.waiting}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def model(name: str) -> dict[str, Any]:
        owner = "alphazero-llm-trainer"
        return {"id": name, "object": "model", "created": service.created, "owned_by": owner}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model(name) for name in service.names.models()]}

    @app.get("/v1/models/{name}")
    async def one_model(name: str) -> dict[str, Any]:
        service.names.method(name, None)
        return model(name)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await answering(request, service, chat_request)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answering(request, service, completion_request)

    @app.get("/v1/traces/{name}")
    async def trace(name: str) -> Response:
        # In a thread, as is the page: a large tree takes a while, and others wait for the event loop.
        line = await asyncio.to_thread(lambda trace: json.dumps(trace.record()), kept(service, name))
        return Response(line, media_type="application/json", headers={"Cache-Control": "no-store"})

    @app.get("/traces/{name}")
    async def trace_page(name: str) -> Response:
        page = await asyncio.to_thread(page_of, kept(service, name), service)
        return HTMLResponse(page, headers=PAGE_HEADERS)

    @app.get("/")
    async def index() -> Response:
        page = await asyncio.to_thread(index_page, service.traces.newest(), service)
        return HTMLResponse(page, headers=PAGE_HEADERS)

    return app


def page_of(trace: Trace, service: Service) -> str:
    """The viewer's page of a trace."""
    from ..viewer.page import tree_page
    from ..viewer.record import pieces

    record = trace.record()
    return tree_page({**record, "pieces": pieces(record, service.student.decode, {})}, title=trace.name, home="/")


def index_page(newest: Sequence[tuple[Trace, float]], service: Service) -> str:
    """The list of the traces that are kept, with their ages in seconds."""
    from ..viewer.traces import TraceLine, traces_page

    settings, lines = service.settings, []
    for trace, age in newest:
        outcome = trace.outcome
        tokens = outcome.cost.sampled_tokens
        lines.append(TraceLine(trace.name, trace.question, trace.method, outcome.answer, tokens, age))
    if not settings.traces or not settings.trace_bytes:
        note = "This server keeps no traces: serve.traces or serve.trace_bytes is 0."
    elif not lines:
        note = f"No traces yet. A searched answer leaves one: ask the model {STUDENT}@{MCTS}, then reload this page."
    else:
        count = "1 trace" if len(lines) == 1 else f"{len(lines):,} traces, the newest first"
        note = f"{count}. The server keeps {settings.traces:,} at most, for {settings.trace_seconds / 60:,.0f} minutes."
    return traces_page(lines, note)


def refusal(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, status_code=error.status, headers=error.headers)


def internal() -> ApiError:
    return ApiError("internal error", 500, kind="server_error", code="internal_error")


def kept(service: Service, name: str) -> Trace:
    """A trace by its id. Raises ApiError where it isn't there, or no more."""
    trace = service.traces.get(name)
    if trace is None:
        raise ApiError("there is no such trace, or no more: the newest ones alone are kept", 404, code="not_found")
    return trace


async def answering(request: Request, service: Service, read: Callable[..., Wanted]) -> Response:
    """The response to a completion request of either kind."""
    arrived = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            raw = await request.body()
        wanted = read(raw, service.student, service.context, service.names, service.settings)
    except ApiError as error:
        service.metrics.requests.labels(NOBODY, str(error.status)).inc()
        raise
    except ClientDisconnect:
        service.metrics.requests.labels(NOBODY, "499").inc()
        service.metrics.gone.inc()
        return Response(status_code=499)  # nobody reads it
    except TimeoutError:
        service.metrics.requests.labels(NOBODY, "408").inc()
        late = f"the body didn't come within {BODY_SECONDS:g} seconds: send it faster"
        return refusal(ApiError(late, 408, code="request_timeout", headers={"Connection": "close"}))
    return Answering(service, wanted, request.state.client, arrived)


class Answering(Response):
    """An answer that ends when its client goes: whatever works on it is cancelled then, and waited for."""

    def __init__(self, service: Service, wanted: Wanted, client: str, arrived: float) -> None:
        super().__init__()
        self.service, self.wanted, self.client, self.arrived = service, wanted, client, arrived
        self.started = False  # an event was sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunks: asyncio.Queue[Any] = asyncio.Queue()
        work = asyncio.ensure_future(self.service(self.wanted, self.client, self.arrived, chunks.put_nowait))
        gone = asyncio.ensure_future(disconnected(receive))
        work.add_done_callback(chunks.put_nowait)
        gone.add_done_callback(lambda _: chunks.put_nowait(GONE))
        status = "500"
        try:
            status = await (self.streamed if self.wanted.stream else self.whole)(chunks, work, scope, receive, send)
        except asyncio.CancelledError:
            status = "503"  # the server ends and waits no longer: the last that this task does is to say so
        except OSError:
            if work.done() and not work.cancelled() and work.exception() is not None:
                raise  # the answer's own error
            status = "499"  # the connection broke while it was written to
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            metrics, seconds = self.service.metrics, asyncio.get_running_loop().time() - self.arrived
            metrics.requests.labels(self.wanted.model, status).inc()
            metrics.seconds.labels(self.wanted.model).observe(seconds)
            if status == "499":
                metrics.gone.inc()
        if status == "503" and work.cancelled():
            refused = ending(self.service.settings.grace_seconds)
            if self.started:
                last = event(refused.body) + event("[DONE]")
                await send({"type": "http.response.body", "body": last, "more_body": False})
            else:
                await refusal(refused)(scope, receive, send)

    async def whole(
        self, chunks: asyncio.Queue[Any], work: asyncio.Future[ServedAnswer], scope: Scope, receive: Receive, send: Send
    ) -> str:
        """Send the answer at once; returns the status."""
        while (item := await chunks.get()) is not work:
            if item == GONE:
                return "499"
        response = self.finished(work)
        await response(scope, receive, send)
        return str(response.status_code)

    async def streamed(
        self, chunks: asyncio.Queue[Any], work: asyncio.Future[ServedAnswer], scope: Scope, receive: Receive, send: Send
    ) -> str:
        """Send server-sent events as they come; an error before the first one has its own status."""
        while (item := await chunks.get()) is not work:
            if item == GONE:
                return "499"
            if not self.started:
                self.started = True
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            if item is not None:
                await send({"type": "http.response.body", "body": event(item), "more_body": True})
        if not self.started:
            response = self.finished(work)
            await response(scope, receive, send)
            return str(response.status_code)
        last, status = b"", "200"
        error = work.exception()
        if isinstance(error, ApiError):
            last, status = event(error.body), str(error.status)
        elif error is not None:
            last = event(internal().body)
        await send({"type": "http.response.body", "body": last + event("[DONE]"), "more_body": False})
        if error is not None and not isinstance(error, ApiError):
            raise error  # for the log
        return status

    def finished(self, work: asyncio.Future[ServedAnswer]) -> Response:
        """The response of finished work. Raises what isn't the client's to know."""
        error = work.exception()
        if isinstance(error, ApiError):
            return refusal(error)
        return JSONResponse(work.result().body())


async def disconnected(receive: Callable[[], Awaitable[Any]]) -> None:
    """Wait until the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
