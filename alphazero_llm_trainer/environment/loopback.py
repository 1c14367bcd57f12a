"""The embedded student behind an OpenAI-compatible address on 127.0.0.1, for verifiers' own client."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..config.load import explain
from ..config.sections import Temperature
from ..engine.protocol import Generated, GenerateRequest
from ..errors import EngineError
from ..policy.chat import ChatMessage
from .frozen import EMBEDDED_MODEL, FrozenStudent

MAX_BODY = 4 * 1024 * 1024


class ChatRequest(BaseModel):
    """The part of a chat request that is served; parameters that change nothing here are accepted and ignored."""

    model_config = ConfigDict(extra="ignore")

    model: str
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    temperature: Annotated[Temperature, Field(le=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    stream: bool | None = None


class BadRequest(Exception):
    """A request that is answered with an error in OpenAI's shape."""

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


class Loopback:
    """One server on an ephemeral port. `start` and `close` belong to the event loop that the student answers on."""

    def __init__(self, frozen: FrozenStudent) -> None:
        self.frozen = frozen
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; afterwards `url` is the base URL, `/v1` included."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_openai_errors])
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def close(self) -> None:
        """Stop listening. A second call does nothing."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": EMBEDDED_MODEL, "object": "model", "created": 0, "owned_by": "alphazero-llm-trainer"}
        return web.json_response({"object": "list", "data": [model]})

    async def _chat(self, request: web.Request) -> web.Response:
        try:
            asked = ChatRequest.model_validate_json(await request.read())
        except ValidationError as error:
            raise BadRequest(explain(error)) from error
        prompt_ids, wanted = self._request(asked)
        try:
            [answers] = await self.frozen.student.engine.generate([wanted])
        except EngineError as error:
            raise BadRequest(str(error)) from error
        sampled = sum(len(answer.token_ids) for answer in answers)
        return web.json_response(
            {
                "id": f"chatcmpl-{secrets.token_hex(12)}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": EMBEDDED_MODEL,
                "choices": [self._choice(i, answer, bool(asked.logprobs)) for i, answer in enumerate(answers)],
                "usage": {
                    "prompt_tokens": len(prompt_ids),
                    "completion_tokens": sampled,
                    "total_tokens": len(prompt_ids) + sampled,
                    "prompt_tokens_details": {"cached_tokens": answers[0].cached_tokens},
                },
            }
        )

    def _request(self, asked: ChatRequest) -> tuple[tuple[int, ...], GenerateRequest]:
        """Prompt ids and the engine's request, or BadRequest for what this server doesn't offer."""
        if asked.model != EMBEDDED_MODEL:
            raise BadRequest(f"there is no model {asked.model!r} here: use {EMBEDDED_MODEL}", 404, "model_not_found")
        if asked.stream:
            raise BadRequest("stream is not offered: leave it out")
        stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        if any(stop != "\n" for stop in stops):
            raise BadRequest(f"stop is {asked.stop!r}: only the line end is offered")
        text = self.frozen.student.tokenizer.apply_chat_template(
            [message.wire() for message in asked.messages], add_generation_prompt=True, tokenize=False
        )
        prompt_ids = self.frozen.encode(text)
        limits = (asked.max_completion_tokens, asked.max_tokens, self.frozen.config.search.max_tokens)
        return prompt_ids, GenerateRequest(
            prompt_ids,
            n=1 if asked.n is None else asked.n,
            max_new_tokens=next(limit for limit in limits if limit is not None),
            temperature=1.0 if asked.temperature is None else asked.temperature,
            seed=secrets.randbits(31) if asked.seed is None else asked.seed,
            max_steps=1 if stops else None,
        )

    def _choice(self, index: int, answer: Generated, with_logprobs: bool) -> dict[str, Any]:
        decode = self.frozen.decode
        token_ids = answer.token_ids[:-1] if answer.finish == "eos" else answer.token_ids
        text = decode(token_ids)
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": text.removesuffix("\n") if answer.finish == "stop" else text},
            "finish_reason": "length" if answer.finish == "length" else "stop",
            # As in vLLM: tells a line end apart from the end of the response.
            "stop_reason": "\n" if answer.finish == "stop" else None,
        }
        if with_logprobs:
            choice["logprobs"] = {
                "content": [
                    {"token": decode((token_id,)), "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for token_id, logprob in zip(answer.token_ids, answer.logprobs, strict=True)
                ]
            }
        return choice


@web.middleware
async def _openai_errors(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as error:
        return web.json_response(error.body, status=error.status)
