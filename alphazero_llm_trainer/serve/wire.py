"""Answers as OpenAI's clients read them: whole, or as chunks. `alphazero` holds what OpenAI has no field for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ..types import Cost
from .outcomes import Outcome
from .token_text import Token
from .wanted import Wanted

Decode = Callable[[Sequence[int]], str]


def usage(wanted: Wanted, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What a request took.

    `completion_tokens` are all sampled ones, those of rejected and hidden responses too; `reasoning_tokens` are those
    that are in no returned text. Prompts count once each.
    """
    total = Cost()
    for outcome in outcomes:
        total.add(outcome.cost)
    prompt = sum(len(one.token_ids) for one in wanted.prompts)
    told = sum(outcome.text_tokens for outcome in outcomes)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": total.sampled_tokens,
        "total_tokens": prompt + total.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": min(prompt, total.cached_tokens)},
        "completion_tokens_details": {
            "reasoning_tokens": max(total.sampled_tokens - told, 0),
            "sampled_tokens": total.sampled_tokens,
            "scored_tokens": total.scored_tokens,
            "prefix_computed_tokens": total.prompt_tokens,
            "prefix_cached_tokens": total.cached_tokens,
            "engine_calls": total.calls,
        },
    }


def about(wanted: Wanted, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """The `alphazero` field of a choice."""
    found: dict[str, Any] = {
        "method": str(wanted.method),
        "seed": outcome.seed,
        "ended_by": outcome.ended_by,
        "deadline_hit": outcome.deadline_hit,
        "seconds": round(seconds, 4),
        "sampled_tokens": outcome.cost.sampled_tokens,
        "scored_tokens": outcome.cost.scored_tokens,
        "cached_tokens": outcome.cost.cached_tokens,
    }
    if outcome.tree is not None:
        found |= {
            "trace_id": outcome.trace_id,
            "answer": outcome.answer,
            "why": outcome.why,
            "simulations": outcome.simulations,
            "nodes": len(outcome.tree),
        }
        if wanted.return_tree:
            found["tree"] = outcome.tree.to_dict()
    return found


class Wire:
    """The shapes of one answer.

    Args:
        wanted: the request.
        name, created, fingerprint: of the answer; seconds since 1970; of the student's weights.
        decode: the student's, for alternatives to a token.
    """

    def __init__(self, wanted: Wanted, name: str, created: int, fingerprint: str, decode: Decode) -> None:
        self.wanted, self.decode = wanted, decode
        self.common = {"id": name, "created": created, "model": wanted.model, "system_fingerprint": fingerprint}
        self._offsets: dict[int, int] = {}  # characters told of each choice

    @property
    def choices(self) -> int:
        return self.wanted.n * len(self.wanted.prompts)

    def whole(self, outcomes: Sequence[Outcome], seconds: Sequence[float]) -> dict[str, Any]:
        """The body of an answer that isn't streamed."""
        choices = []
        for index, outcome in enumerate(outcomes):
            end = {"finish_reason": outcome.finish, "stop_reason": outcome.stop}
            probabilities = self.logprobs(index, outcome.tokens)
            if self.wanted.chat:
                content: dict[str, Any] = {"message": {"role": "assistant", "content": outcome.text, "refusal": None}}
            else:
                content = {"text": outcome.text}
            choices.append({"index": index, **content, "logprobs": probabilities, **end})
        details = [about(self.wanted, *pair) for pair in zip(outcomes, seconds, strict=True)]
        return {
            "object": "chat.completion" if self.wanted.chat else "text_completion",
            **self.common,
            "choices": choices,
            "usage": usage(self.wanted, outcomes),
            "alphazero": details[0] if len(details) == 1 else {"choices": details},
        }

    def opening(self) -> list[dict[str, Any]]:
        """The first chunks of a streamed chat: each choice's role."""
        if not self.wanted.chat:
            return []
        return [self.chunk([self.piece(i, {"role": "assistant", "content": ""})]) for i in range(self.choices)]

    def progress(self, index: int, event: dict[str, Any]) -> dict[str, Any]:
        """A chunk without text: how far a search is."""
        return self.chunk([self.piece(index, {} if self.wanted.chat else "")]) | {
            "alphazero": {"index": index, "progress": event}
        }

    def delta(self, index: int, text: str, tokens: list[Token] | None) -> dict[str, Any]:
        """A chunk with new text."""
        piece = self.piece(index, {"content": text} if self.wanted.chat else text)
        piece["logprobs"] = self.logprobs(index, tokens)
        return self.chunk([piece])

    def closing(self, index: int, outcome: Outcome, seconds: float) -> dict[str, Any]:
        """A choice's last chunk: why it ended, and what it took."""
        piece = self.piece(index, {} if self.wanted.chat else "")
        piece |= {"finish_reason": outcome.finish, "stop_reason": outcome.stop}
        return self.chunk([piece]) | {"alphazero": {"index": index, **about(self.wanted, outcome, seconds)}}

    def used(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The chunk that `stream_options.include_usage` asks for."""
        return self.chunk([]) | {"usage": usage(self.wanted, outcomes)}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.wanted.chat else "text_completion"
        found = {"object": kind, **self.common, "choices": choices}
        return found | {"usage": None} if self.wanted.include_usage else found

    def piece(self, index: int, content: Any) -> dict[str, Any]:
        name = "delta" if self.wanted.chat else "text"
        return {"index": index, name: content, "logprobs": None, "finish_reason": None}

    def logprobs(self, index: int, tokens: list[Token] | None) -> dict[str, Any] | None:
        """Tokens as the kind of request tells them; None where they weren't asked for."""
        if tokens is None:
            return None
        if self.wanted.chat:
            content = [
                {
                    **spelled(token.text, token.logprob),
                    "top_logprobs": [spelled(self.decode([other]), value) for other, value in token.top],
                }
                for token in tokens
            ]
            return {"content": content, "refusal": None}
        at = self._offsets.get(index, 0)
        offsets = []
        for token in tokens:
            offsets.append(at)
            at += len(token.text)
        self._offsets[index] = at
        top = [{self.decode([other]): finite(value) for other, value in token.top} for token in tokens]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": top if self.wanted.logprobs else None,
            "text_offset": offsets,
        }


def spelled(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": finite(logprob), "bytes": list(text.encode())}


def finite(logprob: float) -> float:
    """JSON has no infinity; OpenAI writes -9999 for a token that can't be."""
    return max(logprob, -9999.0)


def event(chunk: dict[str, Any] | str) -> bytes:
    """A server-sent event."""
    data = chunk if isinstance(chunk, str) else json.dumps(chunk, separators=(",", ":"), allow_nan=False)
    return f"data: {data}\n\n".encode()
