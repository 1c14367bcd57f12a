"""Tokens out of an engine: rollouts of every kind with the top-k of each step, and the rule that
ends a response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from ..engine.protocol import Engine, Generated, GenerateRequest, RolloutRequest
from ..engine.step_ends import joins_texts
from ..errors import ConfigError
from ..grading.answers import is_final
from ..types import Cost, LikelyTokens, Logprobs, Step, TokenIds, TokenPairs
from .chat import Prompts
from .engine_steps import drawing_cost

if TYPE_CHECKING:
    from .student import Student


TEXTS_KEPT = 100_000
PARTS_KEPT = 1000


class EngineTokens(Prompts):
    """`mcts.expansion.TokenPolicy` over a student. `Cost` of every call is returned with its
    result.
    """

    def __init__(self, student: Student, temperature: float, beam: int) -> None:
        super().__init__(student)
        if student.lead():
            raise ConfigError(
                f"search.mode is 'token' and student {student.name}'s chat template opens thinking "
                "in the prompt, which trees of tokens don't know: "
                f"use 'step', or set models.{student.name}.thinking=off"
            )
        self.student = student
        self.engine = student.engine
        self.temperature = temperature
        self.beam = beam
        self.context = student.engine.capabilities.max_context
        self._ends = student.engine.step_ends
        # A rollout is cut, judged and taken apart into lines: the same tokens, and the same lines,
        # each time.
        self._parts = lru_cache(PARTS_KEPT)(self._ends.parts)
        self.text: Callable[[TokenIds], str] = lru_cache(TEXTS_KEPT)(student.decode)

    def texts(self, token_ids: TokenIds) -> list[str]:
        """The texts of a response's steps."""
        ends = self._parts(token_ids)
        tokenizer = getattr(self.student, "tokenizer", None)
        if tokenizer is None or joins_texts(tokenizer):  # each text is kept
            return [self.text(token_ids[start:end]) for start, end in pairwise((0, *ends))]
        return self.student.decode_parts(token_ids, ends)

    def lines(self, token_ids: TokenIds, logprobs: Logprobs) -> list[Step]:
        """A response cut into reasoning steps."""
        places = pairwise((0, *self._parts(token_ids)))
        return [
            Step(token_ids[start:end], logprobs[start:end], text)
            for (start, end), text in zip(places, self.texts(token_ids), strict=True)
        ]

    def verdict(self, response: TokenIds) -> str | None:
        """Why a response is finished after its last token ("answer", "ended"), or None where it
        goes on. A final-answer line that is closed, or the end token.
        """
        ended = bool(response) and response[-1] in self.engine.eos_ids
        if not ended and not (
            response and response[-1] in self._ends.tokens and self._ends.whole(response)
        ):
            return None
        begun = (0, *self._parts(response))[-2]
        line = self.texts(response)[-1]
        if "####" in line and is_final(line, self.text(response[:begun])):
            return "answer"
        return "ended" if ended else None

    async def rollout(self, asked: RolloutRequest) -> tuple[Generated, Cost]:
        """A response gone on to its end. Whatever follows the final-answer line is cut off; its
        tokens are paid for.
        """
        response, limit = asked.response, asked.limit
        prefix = asked.prompt + response
        if asked.kind == "beam":
            generated, sampled = await beam_search(
                self.engine,
                prefix,
                self.beam,
                limit,
                asked.top_k,
                lambda ids: self.verdict(response + ids) is not None,
            )
            return generated, Cost(
                sampled_tokens=sampled, prompt_tokens=len(prefix), calls=len(generated.token_ids)
            )
        request = GenerateRequest(
            prefix,
            max_new_tokens=limit,
            temperature=0.0 if asked.kind == "greedy" else self.temperature,
            seed=asked.seed,
            top_k=asked.top_k,
        )
        [[generated]] = await self.engine.generate([request])
        return self._cut_response(response, generated), drawing_cost(prefix, [generated])

    def _cut_response(self, response: TokenIds, generated: Generated) -> Generated:
        ids, whole, begun = generated.token_ids, response + generated.token_ids, 0
        for end, line in zip(self._parts(whole), self.texts(whole), strict=True):
            new = len(response) < end < len(whole)
            if new and "####" in line and is_final(line, self.text(whole[:begun])):
                kept = end - len(response)
                top = None if generated.top is None else generated.top[:kept]
                return Generated(
                    ids[:kept], generated.logprobs[:kept], "stop", top, generated.cached_tokens
                )
            begun = end
        return generated

    async def topk(self, prefix: TokenIds, k: int) -> tuple[LikelyTokens, Cost]:
        """The k likeliest next tokens with their log-probabilities (nats), likeliest first. It
        costs one sampled token: the forward of the prefix's last one.
        """
        [top] = await self.engine.next_token_topk([prefix], k)
        return top, Cost(sampled_tokens=1, cached_tokens=len(prefix) - 1, calls=1)


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """One beam: its tokens, their log-probabilities, the top-k before each, and whether it is
    finished.
    """

    token_ids: TokenIds
    logprobs: Logprobs
    top: tuple[TokenPairs, ...]
    total: float
    finished: bool


async def beam_search(
    engine: Engine,
    prefix: TokenIds,
    width: int,
    limit: int,
    top_k: int,
    finished: Callable[[TokenIds], bool],
) -> tuple[Generated, int]:
    """The likeliest of the responses that a beam of `width` finds, by total log-probability (no
    length normalisation).

    Ends when the best finished hypothesis is likelier than every one that goes on, since totals
    only fall. Returns it with each step's `top_k` next tokens, and how many tokens were computed.
    """
    beams, computed = [_Hypothesis((), (), (), 0.0, False)], 0
    for _ in range(limit):
        live = [beam for beam in beams if not beam.finished]
        if not live or beams[0].finished:
            break
        tops = await engine.next_token_topk(
            [prefix + beam.token_ids for beam in live], max(width, top_k)
        )
        computed += len(live)
        wider = [beam for beam in beams if beam.finished]
        for beam, top in zip(live, tops, strict=True):
            kept = tuple(top[:top_k])
            for token, logprob in top[:width]:
                ids = (*beam.token_ids, token)
                wider.append(
                    _Hypothesis(
                        ids,
                        (*beam.logprobs, logprob),
                        (*beam.top, kept),
                        beam.total + logprob,
                        finished(ids),
                    )
                )
        # Python's sort is stable: equal totals keep the order in which they were found.
        beams = sorted(wider, key=lambda beam: -beam.total)[:width]
    best = beams[0]
    finish = "eos" if best.finished else "length"
    return Generated(best.token_ids, best.logprobs, finish, best.top), computed
