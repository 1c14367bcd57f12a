"""The OpenAI-compatible application: who may ask, routes, streaming, and what happens when a client
goes away.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError, StarletteHTTPException
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion

from ..errors import EngineError, RequestError
from ..types import JsonObject
from ..viewer.page import ask_page
from .requests import (
    ApiError,
    ChatBody,
    CompletionBody,
    WantedAnswer,
    api_error,
    chat_request,
    completion_request,
    error_body,
)
from .service import SOON, Service

LOCAL = ("localhost", "127.0.0.1", "[::1]")
GONE = 499  # what nobody reads
MAX_BODY_BYTES = 1 << 20  # of one request
SMALL_BODY_BYTES = 1 << 16  # which are taken however many others hold
MOST_BODY_BYTES = 64 << 20  # of all requests under way
REFUSED: tuple[type[Exception], ...] = (
    StarletteHTTPException,
    RequestValidationError,
    RequestError,
    EngineError,
    Exception,
)

Chunks = asyncio.Queue[JsonObject | None]


def make_app(service: Service, keys: Sequence[str] = (), hosts: Sequence[str] = LOCAL) -> FastAPI:
    """The application over a service.

    Args:
        service: answers.
        keys: any one of them opens; none: open to whoever can reach the address.
        hosts: that a request may be for ("*": any): where the server listens on this machine alone,
            a request for another host comes from a web page that made its name point here (DNS
            rebinding). Other pages can't ask without leave: browsers send no JSON across origins
            that wasn't asked for first.
    """
    app = FastAPI(
        title="alphazero-llm-trainer", exception_handlers=dict.fromkeys(REFUSED, refusal_response)
    )
    app.add_middleware(Bounded)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    guarded = APIRouter(dependencies=[Depends(require_key(keys))] if keys else [])

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        searching = [f"{service.models.name}@{label}" for label in service.models.searching]
        asks = service.answerer
        return HTMLResponse(ask_page(service.student.title, searching, asks.budget, asks.example))

    @app.get("/health")
    async def health() -> JsonObject:
        return {"status": "ok", "live": service.live, "waiting": service.waiting}

    def model(name: str) -> Model:
        return Model(
            id=name, created=service.created, object="model", owned_by="alphazero-llm-trainer"
        )

    @guarded.get("/v1/models")
    async def models() -> JsonObject:
        return {"object": "list", "data": [model(name) for name in service.models.listed]}

    @guarded.get("/v1/models/{name}")
    async def name_model(name: str) -> Model:
        service.models.of(name)
        return model(name)

    @guarded.post("/v1/chat/completions", responses={200: {"model": ChatCompletion}})
    async def chat(request: Request, body: ChatBody) -> Response:
        wanted = chat_request(body, service.student, service.models)
        return await send_answer(request, service, [wanted])

    @guarded.post("/v1/completions", responses={200: {"model": Completion}})
    async def completion(request: Request, body: CompletionBody) -> Response:
        return await send_answer(
            request, service, completion_request(body, service.student, service.models)
        )

    app.include_router(guarded)
    return app


async def refusal_response(request: Request, error: Exception) -> Response:
    """The answer to a request that can't be served; what broke here is raised again behind it, for
    the log.
    """
    refusal = api_error(error)
    return JSONResponse(error_body(error), refusal.status_code, refusal.headers)


def require_key(keys: Sequence[str]) -> Any:
    """A dependency that wants one of the keys."""

    async def opens(
        bearer: Annotated[
            HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))
        ],
    ) -> None:
        sent = bearer.credentials if bearer else ""
        # All of them are compared: the time that it takes says nothing about them.
        if not any([secrets.compare_digest(sent.strip().encode(), key.encode()) for key in keys]):
            missing = "the API key is missing or wrong: send `Authorization: Bearer KEY`"
            raise ApiError(missing, None, "invalid_api_key", 401)

    return opens


class Bounded:
    """ASGI middleware that refuses a body beyond MAX_BODY_BYTES while it comes, and one that isn't
    small while all others have MOST_BODY_BYTES.
    """

    def __init__(self, app: Any) -> None:
        self.app, self.held = app, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size = 0

        async def count_bytes() -> Any:
            nonlocal size
            message = await receive()
            came = len(message.get("body", b""))
            size += came
            self.held += came
            if size > MAX_BODY_BYTES:
                large = f"the body is larger than {MAX_BODY_BYTES} bytes: send less"
                raise ApiError(large, None, "request_too_large", 413)
            if size > SMALL_BODY_BYTES and self.held > MOST_BODY_BYTES:
                full = "too many large bodies are under way: try again later"
                raise ApiError(full, None, "bodies_full", 503, SOON)
            return message

        try:
            await self.app(scope, count_bytes, send)
        finally:
            self.held -= size


# -- an answer -------------------------------------------------------------------------------------


async def send_answer(request: Request, service: Service, asked: list[WantedAnswer]) -> Response:
    """The response to a request. When its client goes, whatever works on it is cancelled."""
    chunks: Chunks = asyncio.Queue()
    work = asyncio.ensure_future(service(asked, chunks.put_nowait))
    gone = asyncio.ensure_future(wait_disconnect(request))
    gone.add_done_callback(lambda _: work.cancel())
    work.add_done_callback(lambda _: gone.cancel())
    work.add_done_callback(lambda _: chunks.put_nowait(None))
    first = await chunks.get()
    if first is not None:
        events = event_stream(first, chunks, work)
        return StreamingResponse(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
    return Response(status_code=GONE) if work.cancelled() else JSONResponse(work.result())


async def wait_disconnect(request: Request) -> None:
    """Wait until the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def event_stream(
    first: JsonObject, chunks: Chunks, work: asyncio.Future[Any]
) -> AsyncIterator[str]:
    """The chunks as server-sent events; an error among them is the last one before the end."""
    chunk: JsonObject | None = first
    while chunk is not None:
        yield write_event(chunk)
        chunk = await chunks.get()
    error = None if work.cancelled() else work.exception()
    if error is not None:
        yield write_event(error_body(error))
    yield "data: [DONE]\n\n"
    if error is not None and api_error(error).status_code == 500:
        raise error  # for the log


def write_event(chunk: JsonObject) -> str:
    return f"data: {json.dumps(chunk, separators=(',', ':'), allow_nan=False)}\n\n"
