"""Answers as OpenAI's clients read them: whole, or as chunks. `alphazero` holds what OpenAI has no
field for.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..mcts.choose import Choice
from ..tree.arena import Tree
from ..types import Cost, JsonObject, Logprobs, TokenIds
from .requests import ChatBody, WantedAnswer

DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class WireToken:
    """A token of a response: the text that it added, its log-probability (nats), and its likeliest
    alternatives by their texts.
    """

    text: str
    logprob: float
    top: Sequence[tuple[str, float]] = ()


@dataclass(slots=True)
class AnswerOutcome:
    """A choice.

    `token_ids` are the response's, with `logprobs` (nats) where it is a plain sample; `tokens` its
    text's where they were asked for. `stop` is the stop string that cut it. `tree` and `choice` are
    None for a plain sample. `ended_by` is a search's (see `SearchResult`), "deadline", or the
    engine's reason. `calls` are of tools, as OpenAI writes them.
    """

    text: str
    finish: str  # "stop", "length" or "tool_calls"
    seed: int
    cost: Cost
    ended_by: str
    token_ids: TokenIds = ()
    logprobs: Logprobs = ()
    stop: str | None = None
    tokens: list[WireToken] | None = None
    tree: Tree | None = None
    choice: Choice | None = None
    trace_id: str | None = None
    calls: Sequence[JsonObject] = ()


class Wire:
    """The shapes of the answer to a request (`asked`: its prompts). `fingerprint` is of the
    student's weights.
    """

    def __init__(self, asked: Sequence[WantedAnswer], fingerprint: str) -> None:
        self.wanted, self.body = asked[0], asked[0].body
        self.chat = isinstance(self.body, ChatBody)
        self.prompt_tokens = sum(len(wanted.prompt) for wanted in asked)
        self.common = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "chat.completion" if self.chat else "text_completion",
            "created": int(time.time()),
            "model": self.body.model,
            "system_fingerprint": fingerprint,
        }

    def whole(self, outcomes: Sequence[AnswerOutcome]) -> JsonObject:
        """The body of an answer that isn't streamed."""
        choices = []
        for index, outcome in enumerate(outcomes):
            text, calls = outcome.text, outcome.calls
            message: JsonObject = {"role": "assistant", "content": text}
            if calls:
                message |= {"content": text or None, "tool_calls": calls}
            said = {"message": message} if self.chat else {"text": text}
            logprobs = None if outcome.tokens is None else self.logprobs(outcome.tokens)
            choices.append({"index": index, **said, "logprobs": logprobs, **self.ending(outcome)})
        details = [self.about(outcome) for outcome in outcomes]
        about = details[0] if len(details) == 1 else {"choices": details}
        return {
            **self.common,
            "choices": choices,
            "usage": self.usage(outcomes),
            "alphazero": about,
        }

    def chunk(self, index: int, text: str, **more: Any) -> JsonObject:
        """A piece of a streamed choice."""
        said = {"delta": {"content": text}} if self.chat else {"text": text}
        choice = {"index": index, **said, "logprobs": None, "finish_reason": None, **more}
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self.common, "object": kind, "choices": [choice]}

    def ending(self, outcome: AnswerOutcome) -> JsonObject:
        """Why a choice ended; the tokens that it is made of, its end token too, where they were
        asked for.
        """
        ending: JsonObject = {"finish_reason": outcome.finish, "stop_reason": outcome.stop}
        if self.body.return_token_ids:
            ending |= {"token_ids": outcome.token_ids, "token_logprobs": outcome.logprobs}
        return ending

    def usage(self, outcomes: Sequence[AnswerOutcome]) -> JsonObject:
        """What the request took.

        `completion_tokens` are all sampled ones, those of rejected and hidden responses too;
        `reasoning_tokens` are those that are in no returned text. A prompt counts once, whatever
        its choices.
        """
        total = Cost()
        for outcome in outcomes:
            total.add(outcome.cost)
        # Another server's prompts are what its own usage says.
        prompt = self.prompt_tokens or total.prompt_tokens + total.cached_tokens
        sampled = total.sampled_tokens
        hidden = max(sampled - sum(len(outcome.token_ids) for outcome in outcomes), 0)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
            "prompt_tokens_details": {"cached_tokens": min(prompt, total.cached_tokens)},
            "completion_tokens_details": {
                "reasoning_tokens": hidden,
                "scored_tokens": total.scored_tokens,
            },
        }

    def about(self, outcome: AnswerOutcome) -> JsonObject:
        """The `alphazero` field of a choice."""
        tree, choice = outcome.tree, outcome.choice
        about = {
            **outcome.cost.as_dict(),
            "method": self.wanted.method.label,
            "seed": outcome.seed,
            "ended_by": outcome.ended_by,
            "deadline_hit": outcome.ended_by == DEADLINE,
        }
        if tree is not None and choice is not None:
            about |= {"trace_id": outcome.trace_id, "answer": choice.answer, "why": choice.why}
            if self.grows:
                about |= {"tree": tree.to_dict(), "node": choice.node, "response": choice.response}
        return about

    @property
    def grows(self) -> bool:
        """Whether the tree is asked for."""
        return isinstance(self.body, ChatBody) and self.body.return_tree

    def logprobs(self, tokens: Sequence[WireToken]) -> JsonObject:
        """Tokens with their log-probabilities: a chat's with alternatives each; a completion's in
        columns, with alternatives by their text and places.
        """
        if self.chat:
            content = []
            for token in tokens:
                others = [spell_token(*other) for other in token.top]
                content.append({**spell_token(token.text, token.logprob), "top_logprobs": others})
            return {"content": content}
        # From the least likely alternative on, so that the likeliest of equal texts stays.
        tops = [dict(reversed(token.top)) for token in tokens]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": tops if self.body.alternatives else None,
            "text_offset": list(accumulate((len(token.text) for token in tokens[:-1]), initial=0))
            if tokens
            else [],
        }


def spell_token(text: str, logprob: float) -> JsonObject:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
