"""What a leaf of token-level search becomes: its likeliest next tokens, a rollout to the end, a
value.

The root is the prompt's token ids and an action is one token (AlphaGo's search over a language
model's vocabulary).
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from ..engine.protocol import RolloutRequest
from ..tree.arena import ROOT, Rollout
from ..types import Direction, Logprobs, RewardParts, Step, TokenIds, TokenPairs
from .expansion import Expansion, TokenPolicy
from .gumbel import softmax
from .mcts import Leaf, LeafEvaluation, mix
from .seeds import derive_seed
from .waiting import gather_all

PREFIX_PROBABILITY = 0.5  # data generation: how often a prefix is taken
PREFIX_TOKENS = 15  # and its longest


# A graded rollout from some node on, and the likeliest tokens at each of its steps.
_Rolled = tuple[Rollout, tuple[TokenPairs, ...]]


class TokenExpansion(Expansion[TokenPolicy]):
    """Evaluates the leaves of one tree whose nodes are tokens.

    Every rollout brings the top-k of each of its steps. A greedy rollout is the greedy rollout of
    every node along it, so that those nodes expand and are valued with no call at all.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.text = self.policy.text  # tokens don't always decode one by one; lines do
        # Tokens of a response at most.
        self.longest = min(self.settings.max_tokens, self.policy.context - len(self.prompt))
        # (parent, own tokens) of a node -> the rollout that passes it, where, and whether that is
        # its first use.
        self._known: dict[tuple[int, TokenIds], tuple[_Rolled, int, bool]] = {}
        self.beams = self.settings.beam if self.settings.rollout == "beam" else 1

    @property
    def draws(self) -> int:
        """All children are there after one evaluation."""
        return self.settings.candidates

    def least(self, node: int) -> int:
        """One token of a rollout, V of the leaf, and what grading takes."""
        ids, _ = self.tree.sequence(node)
        least = self.paid.least(len(ids), self.beams)
        return least if self.value is None else least + self.value.price(self.prompt + ids)

    async def open(self, left: int | None) -> None:
        """For data generation: a random prefix of a first rollout moves the root deeper, so that
        states of the middle are searched as well.
        """
        if not self.parts.generating or len(self.tree) > 1:
            return
        limit = max(self._room(0, left), 1)
        rollout, top = await self._roll((), (), limit, derive_seed(self.seed, "first"))
        rng = Random(derive_seed(self.seed, "prefix"))
        moves, length = rng.random() < PREFIX_PROBABILITY, rng.randint(0, PREFIX_TOKENS)
        length = min(length, len(rollout.token_ids) - 1)
        node = ROOT
        if moves and length > 0:
            ids, logprobs = rollout.token_ids[:length], rollout.logprobs[:length]
            self.tree.expand(ROOT, [Step(ids, logprobs, self.policy.text(ids))], [1.0])
            self.tree.expanded[ROOT] = True
            node = ROOT + 1
        self._known[self._key(node)] = (rollout, top), len(self.tree.sequence(node)[0]), True

    async def __call__(self, leaf: Leaf, left: int | None) -> LeafEvaluation:
        """Children and the value of one leaf, or its reward where the response ends there."""
        tree, settings, node = self.tree, self.settings, leaf.node
        ids, logprobs = tree.sequence(node)
        # A prompt beyond the context is the engine's to refuse.
        verdict = self.policy.verdict(ids) if ids else None
        if verdict is None and len(ids) >= max(self.longest, 1):
            verdict = "length"
        if verdict is not None:
            reward = await self._grade(ids, logprobs, verdict)
            return LeafEvaluation(terminal=(verdict, reward), value=reward.total)
        if left is not None and self.value is not None:
            left -= self.value.price(self.prompt + ids)
        estimate, known = None, self._known.pop(self._key(node), None)
        if known is None and self.rolls:
            limit = max(self._room(len(ids), left), 1)
            seed = derive_seed(self.seed, node, tree.N[node])
            waits: list[Awaitable[Any]] = [self._roll(ids, logprobs, limit, seed)]
            if self.value is not None:
                waits.append(self.value(self.prompt + ids))
            rolled, *values = await gather_all(*waits)
            known, estimate = (rolled, 0, True), values[0] if values else None
        elif self.value is not None:
            estimate = await self.value(self.prompt + ids)
        rollouts: tuple[Rollout, ...] = ()
        backed_up = estimate
        if known is None:
            top, spent = await self.policy.topk(self.prompt + ids, settings.top_k)
            self.cost.add(spent)
        else:
            (rollout, tops), at, new = known
            top = list(tops[at])
            rollouts = (part_of(rollout, node, at, int(new)),)
            weight = self.rollout_weight if self.rolls else 0.0
            earned = rollout.reward
            backed_up = earned if estimate is None else mix(estimate, earned, weight)
            if settings.rollout == "greedy" and at + 1 < len(rollout.token_ids):
                # From its own next token's node on, it is the rollout from there.
                self._known[node, rollout.token_ids[at : at + 1]] = (rollout, tops), at + 1, False
        steps, priors = self._children(top)
        return LeafEvaluation(
            steps=steps, priors=priors, estimate=estimate, value=backed_up, rollouts=rollouts
        )

    def _room(self, prefix: int, left: int | None) -> int:
        """Tokens of the longest rollout after `prefix` tokens that the limits allow and `left`
        tokens pay for.
        """
        room = self.longest - prefix
        return room if left is None else min(room, self.paid.room(left, prefix, self.beams))

    def _key(self, node: int) -> tuple[int, TokenIds]:
        return self.tree.parent[node], self.tree.token_ids[node]

    def _children(self, top: Sequence[tuple[int, float]]) -> tuple[list[Step], list[float]]:
        """The top-k as steps of one token, and their probabilities renormalised over the k."""
        steps = [Step((token,), (logprob,), self.policy.text((token,))) for token, logprob in top]
        # P(a) = p(a) / sum of p over the k kept tokens.
        return steps, softmax([logprob for _, logprob in top])

    async def _roll(self, ids: TokenIds, logprobs: Logprobs, limit: int, seed: int) -> _Rolled:
        """A rollout after the response `ids`, graded."""
        settings = self.settings
        assert settings.rollout is not None, "the driver chose one"
        kind = settings.rollout if self.rolls else "greedy"
        asked = RolloutRequest(self.prompt, ids, kind, limit, seed, settings.top_k)
        generated, spent = await self.policy.rollout(asked)
        self.cost.add(spent)
        whole = ids + generated.token_ids
        verdict = self.policy.verdict(whole) or "length"
        reward = await self._grade(whole, logprobs + generated.logprobs, verdict)
        assert generated.top is not None
        rollout = Rollout(
            ROOT,
            generated.token_ids,
            generated.logprobs,
            "",  # written when the search is over: most rollouts are merged before
            verdict,
            reward.total,
            reward.hre,
            reward.pre,
            outcome=reward.outcome,
        )
        return rollout, generated.top

    async def _grade(self, ids: TokenIds, logprobs: Logprobs, verdict: str) -> RewardParts:
        lines = self.policy.lines(ids, logprobs)
        return await self.grade(lines, [Direction.NONE] * len(lines), verdict)

    async def close(self, node: int, left: int | None) -> int:
        """Without rollouts in the search: one from `node`, the end of the most visited path. Then
        tidy the rollouts.
        """
        if not self.rolls and self.tree.verdict[node] is None:
            ids, logprobs = self.tree.sequence(node)
            room = self._room(len(ids), left)
            if room > 0:
                rollout, _ = await self._roll(ids, logprobs, room, derive_seed(self.seed, "final"))
                self.tree.rollouts.append(part_of(rollout, node, 0, 1))
        self.tree.sink_rollouts(self.policy.text)
        return node


def part_of(rollout: Rollout, node: int, at: int, samples: int) -> Rollout:
    """What a rollout is from `node` on, `at` of its tokens later."""
    ids, logprobs = rollout.token_ids[at:], rollout.logprobs[at:]
    return replace(rollout, node=node, token_ids=ids, logprobs=logprobs, samples=samples)
