"""vLLM servers that are already running, over their OpenAI-compatible API with token-id prompts.

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --generation-config vllm --max-logprobs 200 \\
        --enable-prompt-tokens-details --enable-lora --max-loras 1 --max-lora-rank 32

Of these, --max-logprobs is for token-level search with more than 20 next tokens, --enable-prompt-tokens-details for a cost
that knows cached prompt tokens (without it all count as computed), and the rest for training: an adapter a version is
loaded under a new name. Whole weights can't be sent to a server.

With several servers of one model a prompt goes to the one that read its beginning (`server_routes`). One that goes away is
left out, its requests are sent to the others, and it is taken back when it answers again, with the adapter of that time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from ..config.sections import EngineConfig, VllmConfig
from ..errors import ConfigError, EngineError
from .background import LoopThread
from .completions import Answer, Ask, CompletionEngine, ranked
from .server_routes import Routes, Server
from .step_ends import StepEnds
from .vllm_weights import Versions, has_adapter, write_adapter

ATTEMPTS = 3  # of a request whose connection breaks; it draws the same tokens again
SAMPLE_TEXT = "3 boxes of 14 apples are 3 * 14 = 42 apples\n"  # that server and student must tokenise alike
NO_WEIGHTS = "a vLLM server takes adapters alone: set train.adapter=lora or engine.backend=vllm"
LEAVE_SECONDS = 10.0  # for all servers together, at the end
RETURN_SECONDS = 2.0  # between two looks at whether a server that went away is back
TOKEN = "token_id:"  # noqa: S105 - how the server writes a token where it is asked for ids


log = logging.getLogger(__name__)


class ServerLostError(EngineError):
    """A server doesn't answer any more, or only that it can't: another one may."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a server says of itself: its model's name, that one's context in tokens, and its log-probabilities `[T]` of
    SAMPLE_TEXT, by which servers with other weights are told apart."""

    model: str
    context: int
    logprobs: tuple[float, ...]


class ServerEngine(CompletionEngine):
    """`engine.protocol.Engine` over one `vllm serve` or several with the same model.

    `set_policy(None, version)` has each server load the adapter that `model` has by then, from a folder that it must be able
    to read (`engine.vllm.adapter_dir`).

    Args:
        model: the trainer's model.
        tokenizer: the student's; the servers' must agree with it.
        adapter: what training would change, "full" or "lora".

    Raises:
        ConfigError: the key's variable is not set.
        EngineError: a server can't be reached, or doesn't serve this student.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        eos_id: int,
        eos_ids: frozenset[int],
        step_ends: StepEnds,
        settings: EngineConfig,
        adapter: str,
    ) -> None:
        vllm = settings.vllm
        self.settings, self.adapter = vllm, adapter
        headers, self.versions = authorisation(vllm), adapter_folders(vllm)
        self.routes = Routes(vllm.base_urls)
        self.thread = LoopThread("vllm-server")
        self.client = httpx.AsyncClient(
            headers=headers,
            timeout=httpx.Timeout(vllm.timeout_seconds, connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=vllm.max_concurrent * len(vllm.base_urls)),
        )
        self._changing = asyncio.Lock()  # adapters are loaded, and servers taken back, one at a time
        self._watching: asyncio.Task[None] | None = None
        self._end = weakref.finalize(self, shut, self.client, self.thread, self.versions, self.routes)
        try:
            self.greeting, trainable = self.thread.wait(self._greet_all(tokenizer, eos_id))
        except EngineError:
            self._end()
            raise
        self.base = self.greeting.model
        context = min(settings.max_context, self.greeting.context - 1)
        super().__init__(
            model,
            eos_id=eos_id,
            eos_ids=eos_ids,
            step_ends=step_ends,
            context=context,
            trainable=trainable and adapter == "lora",
        )
        self.serving, self.folder = self.base, Path()
        self.facts = {"backend": "vllm-server", "base_url": vllm.base_url, "model": self.base}

    def close(self) -> None:
        """Unload the adapter and close the connections; no call may follow. The servers go on."""
        if self._watching is not None:
            self.thread.loop.call_soon_threadsafe(self._watching.cancel)
        self._end()

    # -- on the thread's event loop ----------------------------------------------------------------------------------

    async def _greet_all(self, tokenizer: Any, eos_id: int) -> tuple[Greeting, bool]:
        """What the servers say alike, the least of their contexts, and whether all of them load adapters."""
        ours = tokenizer(SAMPLE_TEXT, add_special_tokens=False)["input_ids"]
        self.own = (ours, eos_id, tokenizer.decode([eos_id]))
        first, *others = self.routes.servers
        greeting, swaps = await self._greet(first.url), await self._swaps(first.url)
        for server in others:
            found = await self._greet(server.url)
            self._alike(server.url, greeting, found)
            greeting = replace(greeting, context=min(greeting.context, found.context))
            swaps = swaps and await self._swaps(server.url)
        return greeting, swaps

    def _alike(self, url: str, expected: Greeting, found: Greeting) -> None:
        """Raises EngineError where a server has another model than the others."""
        if found.model != expected.model:
            raise EngineError(
                f"engine.vllm.base_url names servers of two models, {expected.model} and {found.model} (at {url}): serve one"
                " model everywhere"
            )
        gap = max(abs(a - b) for a, b in zip(found.logprobs, expected.logprobs, strict=True))
        if not gap <= self.settings.gap_max:
            raise EngineError(
                f"the server at {url} has other weights than the others: its log-probabilities differ by up to {gap:.3g}"
                " nats; serve one model everywhere"
            )

    async def _greet(self, url: str) -> Greeting:
        """What the server says of itself, after checks that its model is the student's."""
        listed = (await self._get(f"{url}/models")).get("data", [])
        served = {str(one.get("id")): one for one in listed if one.get("parent") is None}
        name = self.settings.model if self.settings.model is not None else next(iter(served), "")
        if name not in served or (self.settings.model is None and len(served) > 1):
            raise EngineError(
                f"engine.vllm.model is {self.settings.model} and the server at {url} serves"
                f" {', '.join(served) or 'nothing'}: name one of them"
            )
        ours, eos_id, end_text = self.own
        root = url.removesuffix("/v1")
        theirs = await self._post(
            f"{root}/tokenize", {"model": name, "prompt": SAMPLE_TEXT, "add_special_tokens": False}
        )
        end = await self._post(f"{root}/detokenize", {"model": name, "tokens": [eos_id]})
        if theirs.get("tokens") != ours or end.get("prompt") != end_text:
            raise EngineError(
                f"the server's model {name} has another tokenizer than the student: serve the student's own model, or"
                " name another with engine.vllm.model"
            )
        context = int(served[name].get("max_model_len") or theirs["max_model_len"])
        logprobs: tuple[float, ...] = ()
        if len(self.routes.servers) > 1:
            ask = Ask(tuple(ours), 1, 0.0, 0, scored=True)
            answer = parse(await self._post(f"{url}/completions", body(ask, name)), ask)
            logprobs = tuple(score for score in answer.scores if score is not None)
        return Greeting(name, context, logprobs)

    async def _swaps(self, url: str) -> bool:
        """True when the server has the route that loads adapters; it answers to POST alone."""
        response = await self._exchange("GET", f"{url}/load_lora_adapter", None)
        return response.status_code == httpx.codes.METHOD_NOT_ALLOWED

    async def _complete(self, ask: Ask, base: bool = False) -> Answer:
        while True:
            server, model = self.routes.choose(ask.prompt_ids), self.base if base else self.serving
            server.busy += 1
            try:
                said = await self._post(f"{server.url}/completions", body(ask, model))
            except ServerLostError as error:
                self._lose(server, error)
                continue
            finally:
                server.busy -= 1
            server.served += 1
            # A base model may answer under another of its names, an adapter has one.
            if model != self.base and said.get("model") != model:
                raise EngineError(
                    f"the server at {server.url} answered with {said['model']} instead of {model}: versions of a policy may"
                    " not be mixed; is somebody else changing its adapters?"
                )
            return parse(said, ask)

    def _lose(self, server: Server, error: ServerLostError) -> None:
        """Leave a server out until it answers again. Raises `error` where it is the only one, or the last."""
        if len(self.routes.servers) == 1:
            raise error
        if server.up:
            server.up = False
            server.losses += 1
            log.warning("the server at %s is left out until it answers again: %s", server.url, error)
        if not any(one.up for one in self.routes.servers):
            raise EngineError(f"none of the {len(self.routes.servers)} vLLM servers is left; the last one: {error}")
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        """Take servers back as they answer again, with the adapter that is served by then."""
        while lost := [server for server in self.routes.servers if not server.up]:
            await asyncio.sleep(RETURN_SECONDS)
            for server in lost:
                try:
                    async with self._changing:
                        self._alike(server.url, self.greeting, await self._greet(server.url))
                        if self.serving != self.base:
                            await self._load(server)
                        server.up = True
                        log.warning("the server at %s is back", server.url)
                except ServerLostError:  # not there yet
                    continue
                except EngineError as error:
                    if server.refusal != str(error):  # once, however often it is asked again
                        log.warning("the server at %s answers and is not taken back: %s", server.url, error)
                    server.refusal = str(error)

    async def _push(self) -> None:
        if not has_adapter(self.model):
            if self.adapter == "full":
                raise EngineError(f"all weights were trained and {NO_WEIGHTS}")
            return
        async with self._changing:
            folder = self.versions.next()
            write_adapter(self.model, folder)
            old, old_folder = self.serving, self.folder
            self.serving, self.folder = self.versions.name, folder
            servers = self.routes.up()
            for server, error in zip(
                servers, await asyncio.gather(*map(self._load, servers), return_exceptions=True), strict=True
            ):
                if isinstance(error, ServerLostError):
                    self._lose(server, error)
                elif isinstance(error, EngineError):
                    raise EngineError(
                        f"the server takes no adapter ({error}): start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1,"
                        " --enable-lora and --max-lora-rank, and let it read engine.vllm.adapter_dir"
                    ) from error
                elif error is not None:
                    raise error
            if old != self.base:
                self.versions.drop(old_folder)

    async def _load(self, server: Server) -> None:
        """Have a server load the adapter that is served now, where it doesn't have it, and let go of older versions."""
        listed = (await self._get(f"{server.url}/models")).get("data", [])
        names = {str(one.get("id")) for one in listed}
        if self.serving not in names:
            wanted = {"lora_name": self.serving, "lora_path": str(self.folder.resolve())}
            await self._post(f"{server.url}/load_lora_adapter", wanted)
        for name in sorted(names - {self.serving}):
            if name.startswith(f"{self.versions.root.name}-"):
                await self._post(f"{server.url}/unload_lora_adapter", {"lora_name": name})

    async def _get(self, url: str) -> dict[str, Any]:
        return await self._send("GET", url, None)

    async def _post(self, url: str, content: Mapping[str, Any]) -> dict[str, Any]:
        return await self._send("POST", url, content)

    async def _exchange(self, method: str, url: str, content: Mapping[str, Any] | None) -> httpx.Response:
        """The server's answer, whatever it is. A connection that breaks is tried again."""
        for attempt in itertools.count(1):
            try:
                return await self.client.request(method, url, json=content)
            except httpx.TransportError as error:
                if attempt == ATTEMPTS or isinstance(error, httpx.TimeoutException):
                    address = url[: url.find("/", url.find("//") + 2)]
                    raise ServerLostError(
                        f"the vLLM server at {address} can't be reached ({type(error).__name__}): start it, or correct"
                        " engine.vllm.base_url or engine.vllm.timeout_seconds"
                    ) from error
                await asyncio.sleep(0.2 * attempt)
        raise AssertionError

    async def _send(self, method: str, url: str, content: Mapping[str, Any] | None) -> dict[str, Any]:
        """The server's JSON answer; anything else is an EngineError."""
        response = await self._exchange(method, url, content)
        if response.status_code >= 400:
            # 502 to 504: a server on its way down or up, or a front before it; 500: vLLM's engine has died; 404: it was
            # started again, so quickly that nobody noticed, and doesn't have the adapter.
            lost = response.status_code >= 500 or (response.status_code == 404 and url.endswith("/completions"))
            kind = ServerLostError if lost else EngineError
            raise kind(f"the vLLM server answers {url} with {response.status_code}: {reason(response)}")
        if not response.headers.get("content-type", "").startswith("application/json"):
            return {}
        try:
            said = response.json()
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise EngineError(
                f"the vLLM server's answer to {url} is not a JSON object: is engine.vllm.base_url a vLLM server's?"
            )
        return said


def body(ask: Ask, model: str) -> dict[str, Any]:
    """The request's JSON. Everything that a server's or model's defaults could change is said."""
    given: dict[str, Any] = {
        "model": model,
        "prompt": list(ask.prompt_ids),
        "add_special_tokens": False,
        "n": 1,
        "max_tokens": ask.max_new_tokens,
        "temperature": ask.temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": True,
        "stop_token_ids": list(ask.stop_ids),
        "logprobs": ask.top_k,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
    }
    if ask.temperature > 0:
        given["seed"] = ask.seed
    if ask.scored:
        given["prompt_logprobs"] = 0
    return given


def parse(answer: Mapping[str, Any], ask: Ask) -> Answer:
    """The server's completion as an Answer. Raises EngineError where something is missing."""
    try:
        [choice] = answer["choices"]
        ids, logged = tuple(choice["token_ids"]), choice["logprobs"]
        logprobs = tuple(float(value) for value in logged["token_logprobs"])
        top: tuple[tuple[tuple[int, float], ...], ...] = ()
        if ask.top_k:
            rows = logged["top_logprobs"]
            top = tuple(
                ranked({int(key.removeprefix(TOKEN)): value for key, value in row.items()}, ask.top_k) for row in rows
            )
        scores: tuple[float | None, ...] = ()
        if ask.scored:
            pairs = zip(ask.prompt_ids, choice["prompt_logprobs"], strict=True)
            scores = tuple(None if row is None else float(row[str(token)]["logprob"]) for token, row in pairs)
        details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            f"the server's completion lacks token ids or log-probabilities ({type(error).__name__}: {error}): it must be"
            " vLLM 0.31 or newer"
        ) from error
    if not ids or len(ids) != len(logprobs):
        raise EngineError(f"the server's completion has {len(ids)} tokens and {len(logprobs)} log-probabilities")
    return Answer(ids, logprobs, top, int(details.get("cached_tokens") or 0), scores)


def reason(response: httpx.Response) -> str:
    """What an error's answer says, shortened."""
    try:
        said = response.json()
    except ValueError:
        return response.text.strip()[:200] or "nothing"
    error = said.get("error", said) if isinstance(said, dict) else said
    return str(error.get("message", error) if isinstance(error, dict) else error).splitlines()[0][:200]


def authorisation(vllm: VllmConfig) -> dict[str, str]:
    """The header with the server's key, where it wants one."""
    if vllm.key_variable is None:
        return {}
    key = os.environ.get(vllm.key_variable)
    if not key:
        raise ConfigError(
            f"engine.vllm.key_variable names {vllm.key_variable}, which is not set: set it to the server's key"
        )
    return {"Authorization": f"Bearer {key}"}


def adapter_folders(vllm: VllmConfig) -> Versions:
    """Where adapters are written. Raises ConfigError where that can't be written to."""
    try:
        return Versions(None if vllm.adapter_dir is None else Path(vllm.adapter_dir))
    except OSError as error:
        raise ConfigError(
            f"engine.vllm.adapter_dir {vllm.adapter_dir} can't be written to ({error.strerror}): name a folder that the"
            " server sees too"
        ) from error


def shut(client: httpx.AsyncClient, thread: LoopThread, versions: Versions, routes: Routes) -> None:
    """Close the connections, the thread and the temporary folder, and unload the adapter. At a process's end at the latest.

    Without asyncio, whose threads for host names are gone by then; and once nothing can load an adapter any more.
    """
    headers, deadline = dict(client.headers), time.monotonic() + LEAVE_SECONDS
    try:
        if not thread.inside():
            thread.wait(client.aclose())
        thread.close()
        for server in routes.servers if versions.number else ():
            left = deadline - time.monotonic()
            if left > 0:
                with suppress(httpx.HTTPError):  # a server that is gone has nothing to unload
                    unload = f"{server.url}/unload_lora_adapter"
                    httpx.post(unload, json={"lora_name": versions.name}, headers=headers, timeout=left)
    finally:
        versions.close()
