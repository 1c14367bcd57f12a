"""Chat calls of one rollout through verifiers' interception server, and a step policy for the
search over them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp

from ..chat.reply import UsageBody, finish_of
from ..chat.server import GOING_ON, PROBE, SEED_BITS, SPARE
from ..config.sections import SearchConfig
from ..engine.protocol import Drawn, Generated, Limits
from ..engine.step_ends import response_steps
from ..errors import EngineError
from ..grading.answers import is_final
from ..mcts.seeds import derive_seed
from ..types import Continuation, Cost, Direction, Problem, Step, ids_of, text_of
from .frozen import FrozenStudent

NEEDS = (
    "tree search asks with continue_final_message, which vLLM, llama.cpp's server and "
    "`alphazero-llm-trainer serve` have: use one of them, or leave --env.agent.harness.search out"
)


class ChatCalls:
    """Posts messages and returns choices. The interception server records every call in the
    rollout's trace.
    """

    def __init__(
        self, session: aiohttp.ClientSession, endpoint: str, secret: str, model: str
    ) -> None:
        self.model = model
        self._session = session
        self._url = endpoint.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {secret}"}

    async def __call__(
        self, messages: Sequence[dict[str, Any]], **parameters: Any
    ) -> tuple[dict[str, Any], Cost]:
        """One completion: its first choice, and what it took.

        Raises:
            EngineError: the server refused, was never reached or answered with something else.
        """
        body = {"model": self.model, "messages": list(messages), **parameters}
        try:
            async with self._session.post(self._url, json=body, headers=self._headers) as response:
                if response.status >= 400:
                    raise EngineError(
                        f"the model call failed with status {response.status}: "
                        f"{await response.text()}"
                    )
                answer = await response.json()
            choice = answer["choices"][0]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EngineError(f"the model call failed: {type(error).__name__}: {error}") from error
        except (KeyError, IndexError, TypeError) as error:
            raise EngineError("the model call failed: the answer has no choices") from error
        cost, usage = Cost(calls=1), UsageBody.read(answer.get("usage"))
        if usage is not None:
            usage.count(cost)
        return choice, cost


def prompt_of(cost: Cost) -> int:
    """Tokens of a call's prompt."""
    return cost.prompt_tokens + cost.cached_tokens


class ChatSteps:
    """`search.driver.StepPolicy` over chat calls: a continuation is one call, which goes on from
    the steps before it.

    These stand in one assistant's message as they were written, so that the model reads the tokens
    of its own chain and no turns that it never had. Steps carry the embedded student's token ids
    where it is the one that answers, and text alone elsewhere.

    Args:
        chat: the rollout's calls.
        opening: the messages that ask the question.
        settings: the temperature of the samples and the rule of where steps end.
        frozen: the embedded student when it answers, else None.
    """

    def __init__(
        self,
        chat: ChatCalls,
        opening: Sequence[dict[str, Any]],
        settings: SearchConfig,
        frozen: FrozenStudent | None,
    ) -> None:
        self.chat, self.opening, self.settings, self.frozen = chat, list(opening), settings, frozen
        # prompt tokens of the question alone, until the server is known to go on from a message
        self._asked = 0

    async def continuations(
        self,
        problem: Problem,
        steps: Sequence[Step],
        n: int,
        seed: int,
        limits: Limits,
        temperature: float | None = None,
        without: Drawn | None = None,  # a server's model may repeat itself
    ) -> tuple[list[Continuation], Cost]:
        """`n` continuations of `steps` to the end of the response or its limits, sampled side by
        side.

        None takes the harness's own temperature.

        Raises:
            EngineError: a call got no answer, or the server doesn't go on from `steps`.
        """
        warm = self.settings.temperature if temperature is None else temperature
        if steps:
            await self._check_server()
        drawn = await asyncio.gather(
            *(self._draw(steps, derive_seed(seed, i), limits, warm) for i in range(n))
        )
        cost = Cost()
        for _, spent in drawn:
            cost.add(spent)
        return [continuation for continuation, _ in drawn], cost

    async def _draw(
        self, prefix: Sequence[Step], seed: int, limits: Limits, temperature: float
    ) -> tuple[Continuation, Cost]:
        parameters: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": limits.tokens,
            "seed": seed % 2**SEED_BITS,
        }
        if prefix:
            parameters |= GOING_ON
        if self.frozen is not None:
            parameters["return_token_ids"] = True
        choice, cost = await self.chat(self.messages(prefix), **parameters)
        if not prefix:
            self._asked = prompt_of(cost)
        ended = finish_of(choice.get("finish_reason")) != "length"
        if self.frozen is None:
            text = choice["message"].get("content") or ""
            steps, read = response_steps(text, self.settings.step, text_of(prefix))
            drawn = Continuation(
                tuple(Step((), (), step) for step in steps), ended and read, cut=read and not ended
            )
        else:
            ids, logprobs = tuple(choice["token_ids"]), tuple(choice["token_logprobs"])
            drawn = self.frozen.steps.cut(
                Generated(ids, logprobs, "eos" if ended else "length"), prefix
            )
        if len(drawn.steps) > limits.steps:
            drawn = Continuation(drawn.steps[: limits.steps], ended=False)
        return drawn, cost

    async def _check_server(self) -> None:
        """Raise EngineError for a server that takes the parameter and ignores it.

        A message that goes on is as many tokens longer than the question alone as it has; one that
        was closed, with a new one opened behind it, has the chat's own tokens too.
        """
        if self.frozen is not None or not self._asked:
            return  # asked once, and nothing is known where a server tells no usage
        begun = [*self.opening, {"role": "assistant", "content": PROBE}]
        _, cost = await self.chat(begun, temperature=0.0, max_tokens=1, **GOING_ON)
        if prompt_of(cost) > self._asked + SPARE:
            raise EngineError(
                "the server begins a new message where it should go on from the assistant's; "
                f"{NEEDS}"
            )
        self._asked = 0

    async def adopt(
        self, problem: Problem, steps: Sequence[Step], text: str, source: str, direction: Direction
    ) -> tuple[Continuation, Cost]:
        """A step that somebody else wrote, as it stands."""
        line = text.rstrip("\n")
        final = is_final(line, text_of(steps))
        written = line if final else line + "\n"
        ids = () if self.frozen is None else self.frozen.encode(written, final, ids_of(steps))
        return Continuation(
            (Step(ids, (), written),), ended=final, source=source, direction=direction
        ), Cost()

    def messages(self, steps: Sequence[Step]) -> list[dict[str, Any]]:
        """The opening, and the steps so far in one assistant's message."""
        if not steps:
            return self.opening
        return [*self.opening, {"role": "assistant", "content": text_of(steps)}]
