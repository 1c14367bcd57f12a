"""Answers as OpenAI's clients read them: whole, or as chunks. `alphazero` holds what OpenAI has no field for."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..mcts.choose import Choice
from ..mcts.tree import Tree
from ..types import Cost
from .requests import ChatBody, Wanted

LEAST_LOGPROB = -9999.0  # as OpenAI writes a token that can't be: JSON has no infinity
DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a response: the text that it added, its log-probability (nats) and its likeliest alternatives. The first
    one of an echoed prompt has none."""

    token_id: int
    text: str
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Outcome:
    """A choice.

    `token_ids` are the response's, with `logprobs` (nats) where it is a plain sample; `tokens` its text's where they were
    asked for. `stop` is the stop string that cut it. `tree` and `choice` are None for a plain sample. `ended_by` is a
    search's (see `SearchResult`), "deadline", or the engine's reason.
    """

    text: str
    finish: str  # "stop" or "length"
    seed: int
    cost: Cost
    ended_by: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    stop: str | None = None
    tokens: list[Token] | None = None
    tree: Tree | None = None
    choice: Choice | None = None
    trace_id: str | None = None
    seconds: float = 0.0  # from the request's arrival


class Wire:
    """The shapes of a chat's answer.

    Args:
        asked: the request's prompts.
        fingerprint: of the student's weights.
        decode: the student's, for alternatives to a token.
    """

    prefix, whole_kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, asked: Sequence[Wanted], fingerprint: str, decode: Callable[[Sequence[int]], str]) -> None:
        self.wanted, self.decode = asked[0], decode
        self.prompt_tokens = sum(len(wanted.prompt) for wanted in asked)
        name = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time())}
        self.common = {**name, "model": self.wanted.body.model, "system_fingerprint": fingerprint}

    def whole(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The body of an answer that isn't streamed."""
        choices = []
        for index, outcome in enumerate(outcomes):
            logprobs = None if outcome.tokens is None else self.logprobs(outcome.tokens)
            choice = {"index": index, **self.said(outcome.text), "logprobs": logprobs}
            choices.append(choice | self.ending(outcome))
        details = [self.about(outcome) for outcome in outcomes]
        return {
            "object": self.whole_kind,
            **self.common,
            "choices": choices,
            "usage": self.usage(outcomes),
            "alphazero": details[0] if len(details) == 1 else {"choices": details},
        }

    def said(self, text: str) -> dict[str, Any]:
        """The text of a whole choice."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def told(self, text: str) -> dict[str, Any]:
        """A piece of a choice's text."""
        return {"delta": {"content": text} if text else {}}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """The chunks that begin a choice."""
        return [self.chunk(index, {"delta": {"role": "assistant", "content": ""}})]

    def ending(self, outcome: Outcome) -> dict[str, Any]:
        """Why a choice ended; the tokens that it is made of, its end token too, where they were asked for."""
        found: dict[str, Any] = {"finish_reason": outcome.finish, "stop_reason": outcome.stop}
        if self.wanted.body.return_token_ids:
            found |= {"token_ids": outcome.token_ids, "token_logprobs": outcome.logprobs}
        return found

    def closing(self, index: int, outcome: Outcome) -> dict[str, Any]:
        """A choice's last chunk: why it ended, and what it took."""
        details = {"index": index, **self.about(outcome)}
        return self.chunk(index, self.told("") | self.ending(outcome)) | {"alphazero": details}

    def used(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The chunk that `stream_options.include_usage` asks for."""
        return self.chunk(0, self.told("")) | {"choices": [], "usage": self.usage(outcomes)}

    def chunk(self, index: int, more: dict[str, Any]) -> dict[str, Any]:
        """A piece of a streamed answer."""
        choice = {"index": index, "logprobs": None, "finish_reason": None, **more}
        found = {"object": self.chunk_kind, **self.common, "choices": [choice]}
        return found | {"usage": None} if self.wanted.body.stream_options.include_usage else found

    def usage(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """What the request took.

        `completion_tokens` are all sampled ones, those of rejected and hidden responses too; `reasoning_tokens` are those
        that are in no returned text. A prompt counts once, whatever its choices.
        """
        total = Cost()
        for outcome in outcomes:
            total.add(outcome.cost)
        prompt, told = self.prompt_tokens, sum(len(outcome.token_ids) for outcome in outcomes)
        hidden = max(total.sampled_tokens - told, 0)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": total.sampled_tokens,
            "total_tokens": prompt + total.sampled_tokens,
            "prompt_tokens_details": {"cached_tokens": min(prompt, total.cached_tokens)},
            "completion_tokens_details": {"reasoning_tokens": hidden, "scored_tokens": total.scored_tokens},
        }

    def about(self, outcome: Outcome) -> dict[str, Any]:
        """The `alphazero` field of a choice."""
        cost, tree = outcome.cost, outcome.tree
        found = {
            "method": self.wanted.method.label,
            "seed": outcome.seed,
            "ended_by": outcome.ended_by,
            "deadline_hit": outcome.ended_by == DEADLINE,
            "seconds": round(outcome.seconds, 4),
            "sampled_tokens": cost.sampled_tokens,
            "scored_tokens": cost.scored_tokens,
            "cached_tokens": cost.cached_tokens,
        }
        body = self.wanted.body
        if tree is not None and outcome.choice is not None and isinstance(body, ChatBody):
            found |= {"trace_id": outcome.trace_id, "answer": outcome.choice.answer, "why": outcome.choice.why}
            found |= {"simulations": len(tree.simulations), "nodes": len(tree)}
            if body.return_tree:
                found["tree"] = tree.to_dict()
        return found

    def logprobs(self, tokens: list[Token]) -> dict[str, Any]:
        """Tokens with their log-probabilities."""
        tops = [[spelled(self.decode([other]), value) for other, value in token.top] for token in tokens]
        told = [spelled(token.text, token.logprob) for token in tokens]
        content = [one | {"top_logprobs": top} for one, top in zip(told, tops, strict=True)]
        return {"content": content, "refusal": None}


class CompletionWire(Wire):
    """The shapes of a completion's answer, of OpenAI's older API."""

    prefix, whole_kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def said(self, text: str) -> dict[str, Any]:
        """See `Wire.said`."""
        return {"text": text}

    def told(self, text: str) -> dict[str, Any]:
        """See `Wire.told`."""
        return {"text": text}

    def opening(self, index: int) -> list[dict[str, Any]]:
        """See `Wire.opening`: there is nothing to say."""
        return []

    def logprobs(self, tokens: list[Token]) -> dict[str, Any]:
        """Tokens with their log-probabilities, alternatives (by their text, the likeliest one of equal texts) and places."""
        offsets, at = [], 0
        for token in tokens:
            offsets.append(at)
            at += len(token.text)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [None if token.logprob is None else shown(token.logprob) for token in tokens],
            "top_logprobs": [self.alternatives(token) for token in tokens] if self.wanted.body.alternatives else None,
            "text_offset": offsets,
        }

    def alternatives(self, token: Token) -> dict[str, float] | None:
        """The likeliest tokens in a token's place; None before the first one."""
        if token.logprob is None:
            return None
        found: dict[str, float] = {}
        for other, logprob in token.top:
            found.setdefault(self.decode([other]), shown(logprob))
        return found


def spelled(text: str, logprob: float | None) -> dict[str, Any]:
    assert logprob is not None
    return {"token": text, "logprob": shown(logprob), "bytes": list(text.encode())}


def shown(logprob: float) -> float:
    """A log-probability as JSON has it."""
    return max(logprob, LEAST_LOGPROB)


def event(chunk: dict[str, Any] | str) -> bytes:
    """A server-sent event."""
    data = chunk if isinstance(chunk, str) else json.dumps(chunk, separators=(",", ":"), allow_nan=False)
    return f"data: {data}\n\n".encode()
