"""Chat calls of one rollout through verifiers' interception server, and a step policy for the search over them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp

from ..answers import is_final
from ..engine.protocol import Drawn, Limits
from ..errors import EngineError
from ..mcts.seeds import derive_seed
from ..types import Continuation, Cost, Direction, Problem, Step
from .frozen import FrozenStudent

LINE_TOKENS = 128  # a call's allowance for one step where the whole response has more left
SEED_BITS = 31  # some servers take 32 bits with a sign


class ChatCalls:
    """Posts messages and returns choices. The interception server records every call in the rollout's trace."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: str, secret: str, model: str) -> None:
        self.model = model
        self._session = session
        self._url = endpoint.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {secret}"}

    async def __call__(self, messages: Sequence[dict[str, Any]], **parameters: Any) -> tuple[dict[str, Any], Cost]:
        """One completion: its first choice, and what it took.

        Raises:
            EngineError: the server refused, was never reached or answered with something else.
        """
        body = {"model": self.model, "messages": list(messages), **parameters}
        try:
            async with self._session.post(self._url, json=body, headers=self._headers) as response:
                if response.status >= 400:
                    raise EngineError(f"the model call failed with status {response.status}: {await response.text()}")
                answer = await response.json()
            choice = answer["choices"][0]
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EngineError(f"the model call failed: {type(error).__name__}: {error}") from error
        except (KeyError, IndexError, TypeError) as error:
            raise EngineError("the model call failed: the answer has no choices") from error
        return choice, _cost(answer.get("usage") or {})


def _cost(usage: dict[str, Any]) -> Cost:
    """OpenAI's usage: its prompt tokens include the cached ones."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Cost(
        prompt_tokens=max((usage.get("prompt_tokens") or 0) - cached, 0),
        cached_tokens=cached,
        sampled_tokens=usage.get("completion_tokens") or 0,
        calls=1,
    )


class ChatSteps:
    """`search.driver.StepPolicy` over chat calls: a sampled step is one call whose messages are the steps before it.

    So every path of the search's tree is a branch of verifiers' trace (where samples with one text stay apart). Steps
    carry the embedded student's token ids where it is the one that answers, and text alone elsewhere.

    Args:
        chat: the rollout's calls.
        opening: the messages that ask the question.
        temperature: of the samples.
        frozen: the embedded student when it answers, else None.
    """

    def __init__(
        self, chat: ChatCalls, opening: Sequence[dict[str, Any]], temperature: float, frozen: FrozenStudent | None
    ) -> None:
        self.chat, self.opening, self.temperature, self.frozen = chat, list(opening), temperature, frozen

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
        """`n` continuations of `steps` to the end of the response or its limits, sampled side by side.

        None takes the harness's own temperature.

        Raises:
            EngineError: a call got no answer.
        """
        done = await asyncio.gather(*(self._one(steps, derive_seed(seed, i), limits, temperature) for i in range(n)))
        cost = Cost()
        for _, spent in done:
            cost.add(spent)
        return [continuation for continuation, _ in done], cost

    async def _one(
        self, prefix: Sequence[Step], seed: int, limits: Limits, temperature: float | None
    ) -> tuple[Continuation, Cost]:
        steps: list[Step] = []
        cost, left = Cost(), limits.tokens
        while len(steps) < limits.steps and left > 0:
            choice, spent = await self.chat(
                self.messages([*prefix, *steps]),
                temperature=self.temperature if temperature is None else temperature,
                max_tokens=min(left, LINE_TOKENS),
                stop=["\n"],
                seed=derive_seed(seed, len(steps)) % 2**SEED_BITS,
                **({"return_token_ids": True} if self.frozen is not None else {}),
            )
            cost.add(spent)
            left -= max(spent.sampled_tokens, 1)
            line = next((line for line in (choice["message"].get("content") or "").split("\n") if line.strip()), "")
            # A server that reports stop sequences tells a line's end and the response's apart; elsewhere only an empty
            # line or a final answer ends a response.
            ended = choice.get("finish_reason") == "stop" and choice.get("stop_reason", "unknown") is None
            if line:
                steps.append(self._step(line if ended else line + "\n", ended, choice))
            if ended or not line or is_final(line):
                return Continuation(tuple(steps), ended=True), cost
        return Continuation(tuple(steps), ended=False), cost

    async def adopt(
        self, problem: Problem, steps: Sequence[Step], text: str, source: str, direction: Direction
    ) -> tuple[Continuation, Cost]:
        """A step that somebody else wrote, as it stands."""
        line = text.rstrip("\n")
        final = is_final(line)
        step = self._step(line if final else line + "\n", final, {})
        return Continuation((step,), ended=final, source=source, direction=direction), Cost()

    def messages(self, steps: Sequence[Step]) -> list[dict[str, Any]]:
        """The opening and one assistant message a step."""
        return [*self.opening, *({"role": "assistant", "content": step.text.rstrip("\n")} for step in steps)]

    def _step(self, text: str, ended: bool, choice: dict[str, Any]) -> Step:
        if self.frozen is None:
            return Step((), (), text)
        if "token_ids" in choice:  # as they were sampled
            return Step(tuple(choice["token_ids"]), tuple(choice["token_logprobs"]), text)
        return Step(self.frozen.encode(text, ended), (), text)
