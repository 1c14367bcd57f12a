"""Chat calls of one rollout through verifiers' interception server, and a step policy for the
search over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiohttp

from ..chat.chat_steps import ServedSteps, chat_of
from ..chat.reply import UsageBody, finish_of
from ..chat.server import CONTINUE_FIELDS, PROBE, SERVER_SEED_BITS, SPARE
from ..config.sections import SearchConfig
from ..engine.protocol import Generated, Wanted
from ..engine.step_ends import response_steps
from ..errors import EngineError
from ..mcts.seeds import derive_seed
from ..types import Continuation, Cost, JsonObject, Problem, Step, Steps, ids_of, text_of
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
        self, messages: Sequence[JsonObject], **parameters: Any
    ) -> tuple[JsonObject, Cost]:
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


def prompt_tokens(cost: Cost) -> int:
    """Tokens of a call's prompt."""
    return cost.prompt_tokens + cost.cached_tokens


class ChatSteps(ServedSteps):
    """Steps over chat calls: a continuation is one call.

    Steps carry the embedded student's token ids where it is the one that answers, and text alone
    elsewhere.

    Args:
        chat: the rollout's calls.
        opening: the messages that ask the question.
        settings: the temperature of the samples and the rule of where steps end.
        frozen: the embedded student when it answers, else None.
    """

    seed_of = staticmethod(derive_seed)

    def __init__(
        self,
        chat: ChatCalls,
        opening: Sequence[JsonObject],
        settings: SearchConfig,
        frozen: FrozenStudent | None,
    ) -> None:
        self.chat, self.opening, self.settings, self.frozen = chat, opening, settings, frozen
        self.temperature = settings.temperature
        # prompt tokens of the question alone, until the server is known to go on from a message
        self._asked = 0

    async def sample(
        self, problem: Problem, steps: Steps, wanted: Wanted, cost: Cost
    ) -> Continuation:
        """One continuation of `steps`, whose cost is added to `cost`."""
        parameters: dict[str, Any] = {
            "temperature": wanted.temperature,
            "max_tokens": wanted.limits.tokens,
            "seed": wanted.seed % 2**SERVER_SEED_BITS,
        }
        if steps:
            parameters |= CONTINUE_FIELDS
        if self.frozen is not None:
            parameters["return_token_ids"] = True
        choice, spent = await self.chat(self.messages(steps), **parameters)
        cost.add(spent)
        if not steps:
            self._asked = prompt_tokens(spent)
        ended = finish_of(choice.get("finish_reason")) != "length"
        if self.frozen is None:
            text = choice["message"].get("content") or ""
            texts, read = response_steps(text, self.settings.step, text_of(steps))
            drawn = Continuation(
                tuple(Step((), (), step) for step in texts), ended and read, cut=read and not ended
            )
        else:
            ids, logprobs = tuple(choice["token_ids"]), tuple(choice["token_logprobs"])
            drawn = self.frozen.steps.cut(
                Generated(ids, logprobs, "eos" if ended else "length"), steps
            )
        if len(drawn.steps) > wanted.limits.steps:
            return Continuation(drawn.steps[: wanted.limits.steps], ended=False)
        return drawn

    async def greet(self, steps: Steps) -> None:
        """Raise EngineError for a server that takes the parameter and ignores it.

        A message that goes on is as many tokens longer than the question alone as it has; one that
        was closed, with a new one opened behind it, has the chat's own tokens too.
        """
        if not steps or self.frozen is not None or not self._asked:
            return  # asked once, and nothing is known where a server tells no usage
        begun = [*self.opening, {"role": "assistant", "content": PROBE}]
        _, cost = await self.chat(begun, temperature=0.0, max_tokens=1, **CONTINUE_FIELDS)
        if prompt_tokens(cost) > self._asked + SPARE:
            raise EngineError(
                "the server begins a new message where it should go on from the assistant's; "
                f"{NEEDS}"
            )
        self._asked = 0

    async def read_step(
        self, problem: Problem, steps: Steps, text: str, ended: bool
    ) -> tuple[Step, Cost]:
        """The text as it stands."""
        ids = () if self.frozen is None else self.frozen.encode(text, ended, ids_of(steps))
        return Step(ids, (), text), Cost()

    def messages(self, steps: Steps) -> list[JsonObject]:
        """The messages that ask a question, and the steps so far in one assistant's message."""
        return chat_of(self.opening, steps)
