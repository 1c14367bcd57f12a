"""Answers as OpenAI's clients read them: whole, or as chunks. `alphazero` holds what OpenAI has no field for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ..mcts.tree import ROOT
from ..types import Cost
from .outcomes import DEADLINE, Outcome
from .requests import Wanted
from .text import Token

LEAST_LOGPROB = -9999.0  # as OpenAI writes a token that can't be: JSON has no infinity


def usage(wanted: Wanted, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What a request took.

    `completion_tokens` are all sampled ones, those of rejected and hidden responses too; `reasoning_tokens` are those
    that are in no returned text. The prompt counts once.
    """
    total = Cost()
    for outcome in outcomes:
        total.add(outcome.cost)
    prompt, told = len(wanted.prompt), sum(len(outcome.token_ids) for outcome in outcomes)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": total.sampled_tokens,
        "total_tokens": prompt + total.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": min(prompt, total.cached_tokens)},
        "completion_tokens_details": {
            "reasoning_tokens": max(total.sampled_tokens - told, 0),
            "scored_tokens": total.scored_tokens,
        },
    }


def about(wanted: Wanted, outcome: Outcome) -> dict[str, Any]:
    """The `alphazero` field of a choice."""
    cost, tree = outcome.cost, outcome.tree
    found = {
        "method": wanted.method.label,
        "seed": outcome.seed,
        "ended_by": outcome.ended_by,
        "deadline_hit": outcome.ended_by == DEADLINE,
        "seconds": round(outcome.seconds, 4),
        "sampled_tokens": cost.sampled_tokens,
        "scored_tokens": cost.scored_tokens,
        "cached_tokens": cost.cached_tokens,
    }
    if tree is not None:
        found |= {"trace_id": outcome.trace_id, "answer": outcome.answer, "why": outcome.why}
        found |= {"simulations": tree.N[ROOT], "nodes": len(tree)}
        if wanted.body.return_tree:
            found["tree"] = tree.to_dict()
    return found


class Wire:
    """The shapes of one answer.

    Args:
        wanted: the request.
        name, created, fingerprint: of the answer; seconds since 1970; of the student's weights.
        decode: the student's, for alternatives to a token.
    """

    def __init__(
        self, wanted: Wanted, name: str, created: int, fingerprint: str, decode: Callable[[Sequence[int]], str]
    ) -> None:
        self.wanted, self.decode = wanted, decode
        self.common = {"id": name, "created": created, "model": wanted.body.model, "system_fingerprint": fingerprint}

    def whole(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The body of an answer that isn't streamed."""
        choices = []
        for index, outcome in enumerate(outcomes):
            message = {"role": "assistant", "content": outcome.text, "refusal": None}
            choice = {"index": index, "message": message, "logprobs": self.logprobs(outcome.tokens)}
            choices.append(choice | self.ending(outcome))
        details = [about(self.wanted, outcome) for outcome in outcomes]
        return {
            "object": "chat.completion",
            **self.common,
            "choices": choices,
            "usage": usage(self.wanted, outcomes),
            "alphazero": details[0] if len(details) == 1 else {"choices": details},
        }

    def ending(self, outcome: Outcome) -> dict[str, Any]:
        """Why a choice ended; the tokens that it is made of, its end token too, where they were asked for."""
        found: dict[str, Any] = {"finish_reason": outcome.finish, "stop_reason": outcome.stop}
        if self.wanted.body.return_token_ids:
            found |= {"token_ids": outcome.token_ids, "token_logprobs": outcome.logprobs}
        return found

    def closing(self, index: int, outcome: Outcome) -> dict[str, Any]:
        """A choice's last chunk: why it ended, and what it took."""
        details = {"index": index, **about(self.wanted, outcome)}
        return self.chunk(index, {}, **self.ending(outcome)) | {"alphazero": details}

    def used(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The chunk that `stream_options.include_usage` asks for."""
        return self.chunk(0, {}) | {"choices": [], "usage": usage(self.wanted, outcomes)}

    def chunk(self, index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        """A piece of a streamed answer."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        found = {"object": "chat.completion.chunk", **self.common, "choices": [choice]}
        return found | {"usage": None} if self.wanted.body.stream_options.include_usage else found

    def logprobs(self, tokens: list[Token] | None) -> dict[str, Any] | None:
        """Tokens with their log-probabilities; None where they weren't asked for."""
        if tokens is None:
            return None
        tops = [[spelled(self.decode([other]), value) for other, value in token.top] for token in tokens]
        told = [spelled(token.text, token.logprob) for token in tokens]
        content = [one | {"top_logprobs": top} for one, top in zip(told, tops, strict=True)]
        return {"content": content, "refusal": None}


def spelled(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(text.encode())}


def event(chunk: dict[str, Any] | str) -> bytes:
    """A server-sent event."""
    data = chunk if isinstance(chunk, str) else json.dumps(chunk, separators=(",", ":"), allow_nan=False)
    return f"data: {data}\n\n".encode()
