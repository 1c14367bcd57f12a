"""A vLLM server that is already running, over its OpenAI-compatible API with token-id prompts.

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --generation-config vllm \\
        --max-logprobs 200 --enable-prompt-tokens-details \\
        --enable-lora --max-loras 1 --max-lora-rank 32

Of these, --max-logprobs is for token-level search with more than 20 next tokens,
--enable-prompt-tokens-details for a cost that knows cached prompt tokens (without it all count as
computed), and the rest for training: an adapter a version is loaded under a new name. Whole weights
can't be sent to a server.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from ..config.sections import EngineConfig
from ..errors import ConfigError, EngineError
from ..types import Facts, JsonObject, TokenPairs
from .background import LoopThread
from .completions import Answer, Ask, CompletionEngine, rank_tokens, sampling_fields
from .vllm_weights import Versions, has_adapter, write_adapter

REQUEST_ATTEMPTS = 3  # of a request whose connection breaks; it draws the same tokens again
SAMPLE_TEXT = (
    "3 boxes of 14 apples are 3 * 14 = 42 apples\n"  # that server and student must tokenise alike
)
LEAVE_SECONDS = 10.0  # for the server to unload the adapter, at the end
TOKEN = "token_id:"  # noqa: S105 - how the server writes a token where it is asked for ids

REQUEST_SECONDS = 600.0  # of one request
MAX_CONCURRENT = 256  # requests under way at once


class ServerEngine(CompletionEngine):
    """`engine.protocol.Engine` over a `vllm serve`.

    `set_policy(None, version)` has the server load the adapter that `model` has by then, from a
    folder that it must be able to read (`engine.vllm.adapter_dir`).

    Args:
        model: the trainer's model.
        tokenizer: the student's; the server's must agree with it.
        adapter: what training would change, "full" or "lora".
        ends: `eos_id`, `eos_ids` and `step_ends`, as `CompletionEngine` takes them.

    Raises:
        ConfigError: the key's variable is not set.
        EngineError: the server can't be reached, or doesn't serve this student.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        settings: EngineConfig,
        adapter: str,
        **ends: Any,
    ) -> None:
        vllm = settings.vllm
        self.settings, self.adapter, self.url = vllm, adapter, vllm.base_url.rstrip("/")
        key = os.environ.get("VLLM_API_KEY")  # as for the server itself
        try:
            self.versions = Versions(vllm.adapter_dir)
        except OSError as error:
            raise ConfigError(
                f"engine.vllm.adapter_dir {vllm.adapter_dir} can't be written to "
                f"({error.strerror}): name a folder that the server sees too"
            ) from error
        self.thread = LoopThread("vllm-server")
        self.client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(REQUEST_SECONDS, connect=10.0, pool=None),
            limits=httpx.Limits(max_connections=MAX_CONCURRENT),
        )
        self._end = weakref.finalize(
            self, shut_client, self.client, self.thread, self.versions, self.url
        )
        try:
            self.base, served, swaps = self.thread.wait(self._greet(tokenizer, ends["eos_id"]))
        except EngineError:
            self._end()
            raise
        context = min(settings.context, served - 1)
        super().__init__(model, context=context, trainable=swaps and adapter == "lora", **ends)
        self.folder: Path | None = None  # of the adapter that answers, by this folder's name
        self.facts = {"backend": "vllm-server", "base_url": vllm.base_url, "model": self.base}

    def close(self) -> None:
        """Unload the adapter and close the connections; no call may follow. The server goes on."""
        self._end()

    # -- on the thread's event loop ----------------------------------------------------------------

    async def _greet(self, tokenizer: Any, eos_id: int) -> tuple[str, int, bool]:
        """The server's name for its model, that one's context in tokens, and whether it loads
        adapters.

        Raises EngineError where the model isn't the student's.
        """
        listed = (await self._send(f"{self.url}/models")).get("data", [])
        served = {str(card.get("id")): card for card in listed if card.get("parent") is None}
        name = self.settings.model if self.settings.model is not None else next(iter(served), "")
        if name not in served or (self.settings.model is None and len(served) > 1):
            raise EngineError(
                f"engine.vllm.model is {self.settings.model} and the server at {self.url} serves"
                f" {', '.join(served) or 'nothing'}: name one of them"
            )
        ours = tokenizer(SAMPLE_TEXT, add_special_tokens=False)["input_ids"]
        root = self.url.removesuffix("/v1")
        asked = {"model": name, "prompt": SAMPLE_TEXT, "add_special_tokens": False}
        theirs = await self._send(f"{root}/tokenize", asked)
        end = await self._send(f"{root}/detokenize", {"model": name, "tokens": [eos_id]})
        if theirs.get("tokens") != ours or end.get("prompt") != tokenizer.decode([eos_id]):
            raise EngineError(
                f"the server's model {name} has another tokenizer than the student: serve the "
                "student's own model, or name another with engine.vllm.model"
            )
        # The route that loads adapters answers to POST alone.
        swaps = await self._exchange(f"{self.url}/load_lora_adapter")
        context = int(served[name].get("max_model_len") or theirs["max_model_len"])
        return name, context, swaps.status_code == httpx.codes.METHOD_NOT_ALLOWED

    async def _complete(self, ask: Ask, base: bool = False) -> Answer:
        model = self.base if base or self.folder is None else self.folder.name
        answer = await self._send(f"{self.url}/completions", request_body(ask, model))
        # A base model may answer under another of its names, an adapter has one.
        if model != self.base and answer.get("model") != model:
            raise EngineError(
                f"the server at {self.url} answered with {answer['model']} instead of {model}: "
                "versions of a policy may not be mixed; is somebody else changing its adapters?"
            )
        return parse_answer(answer, ask)

    async def _push(self) -> None:
        if not has_adapter(self.model):
            if self.adapter == "full":
                raise EngineError(
                    "a vLLM server takes adapters alone: "
                    "set train.adapter=lora or engine.backend=vllm"
                )
            return
        old, self.folder = self.folder, self.versions.next()
        write_adapter(self.model, self.folder)
        wanted = {"lora_name": self.folder.name, "lora_path": str(self.folder.resolve())}
        try:
            await self._send(f"{self.url}/load_lora_adapter", wanted)
        except EngineError as error:
            raise EngineError(
                f"the server takes no adapter ({error}): start it with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank, "
                "and let it read engine.vllm.adapter_dir"
            ) from error
        if old is not None:
            await self._send(f"{self.url}/unload_lora_adapter", {"lora_name": old.name})
            self.versions.drop(old)

    async def _exchange(self, url: str, content: Facts | None = None) -> httpx.Response:
        """The server's answer, whatever it is: to a POST where there is `content`. A connection
        that breaks is tried again.
        """
        for attempt in itertools.count(1):
            try:
                return await self.client.request(
                    "GET" if content is None else "POST", url, json=content
                )
            except httpx.TransportError as error:
                if attempt == REQUEST_ATTEMPTS or isinstance(error, httpx.TimeoutException):
                    raise EngineError(
                        f"the vLLM server at {self.url} can't be reached ({type(error).__name__}): "
                        "start it, or correct engine.vllm.base_url"
                    ) from error
                await asyncio.sleep(0.2 * attempt)
        raise AssertionError

    async def _send(self, url: str, content: Facts | None = None) -> JsonObject:
        """The server's JSON answer; anything else is an EngineError."""
        response = await self._exchange(url, content)
        if response.status_code >= 400:
            complaint = " ".join(response.text[:200].split())
            raise EngineError(
                f"the vLLM server answers {url} with {response.status_code}: {complaint}"
            )
        if not response.headers.get("content-type", "").startswith("application/json"):
            return {}
        try:
            return dict(response.json())
        except (ValueError, TypeError) as error:
            raise EngineError(
                f"the vLLM server's answer to {url} is not a JSON object: "
                "is engine.vllm.base_url a vLLM server's?"
            ) from error


def request_body(ask: Ask, model: str) -> JsonObject:
    """The request's JSON. Everything that a server's or model's defaults could change is said."""
    return {
        "model": model,
        "prompt": list(ask.prompt_ids),
        "add_special_tokens": False,
        "n": 1,
        **sampling_fields(ask),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
    }


def parse_answer(answer: Facts, ask: Ask) -> Answer:
    """The server's completion as an Answer. Raises EngineError where something is missing."""
    try:
        [choice] = answer["choices"]
        ids, logged = tuple(choice["token_ids"]), choice["logprobs"]
        logprobs = tuple(float(value) for value in logged["token_logprobs"])
        top: tuple[TokenPairs, ...] = ()
        if ask.top_k:
            rows = logged["top_logprobs"]
            top = tuple(
                rank_tokens(
                    {int(key.removeprefix(TOKEN)): value for key, value in row.items()}, ask.top_k
                )
                for row in rows
            )
        scores: tuple[float | None, ...] = ()
        if ask.scored:
            pairs = zip(ask.prompt_ids, choice["prompt_logprobs"], strict=True)
            scores = tuple(
                None if row is None else float(row[str(token)]["logprob"]) for token, row in pairs
            )
        details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(
            "the server's completion lacks token ids or log-probabilities "
            f"({type(error).__name__}: {error}): it must be vLLM 0.31 or newer"
        ) from error
    if not ids or len(ids) != len(logprobs):
        raise EngineError(
            f"the server's completion has {len(ids)} tokens and {len(logprobs)} log-probabilities"
        )
    return Answer(ids, logprobs, top, int(details.get("cached_tokens") or 0), scores)


def shut_client(
    client: httpx.AsyncClient, thread: LoopThread, versions: Versions, url: str
) -> None:
    """Close the connections, the thread and the temporary folder, and unload the adapter. At a
    process's end at the latest.

    Without asyncio, whose threads for host names are gone by then; and once nothing can load an
    adapter any more.
    """
    try:
        if not thread.inside():
            thread.wait(client.aclose())
        thread.close()
        unload = {"lora_name": versions.newest.name}
        if versions.number:
            with suppress(httpx.HTTPError):  # a server that is gone has nothing to unload
                httpx.post(
                    f"{url}/unload_lora_adapter",
                    json=unload,
                    headers=client.headers,
                    timeout=LEAVE_SECONDS,
                )
    finally:
        versions.close()
