"""BASELINE, not part of the product: token-level MCTS the plain way, as public systems write it.

One tree at a time, linked Python nodes, and nothing is remembered between calls: every expansion runs the model over the
whole prefix for its logits, and every rollout is one `generate` of transformers (beam, greedy or sampled), which computes
the whole prefix again before it goes on with its own cache. `benchmarks/search.py` compares the package's search with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

# {token: (visits, sum of rewards, children)}: what a search is compared by.
Nested = dict[int, tuple[int, float, "Nested"]]


@dataclass(frozen=True, slots=True)
class PlainSettings:
    """`rollout` is "beam", "greedy" or "sample"; `horizon` counts a response's tokens from the prompt."""

    simulations: int = 24
    top_k: int = 5
    exploration: float = 2.0
    horizon: int = 96
    rollout: str = "beam"
    beams: int = 3


@dataclass(eq=False)
class Node:
    """A token of the tree; the root's is -1."""

    token: int
    prior: float
    visits: int = 0
    total: float = 0.0
    reward: float | None = None  # a terminal node's
    children: list[Node] = field(default_factory=list)

    def nested(self) -> Nested:
        return {child.token: (child.visits, child.total, child.nested()) for child in self.children}

    def select(self, exploration: float) -> Node:
        """PUCT (Silver et al. 2017); `max` keeps the earliest on ties."""

        def score(child: Node) -> float:
            value = child.total / child.visits if child.visits else 0.0
            return value + exploration * child.prior * math.sqrt(self.visits) / (1 + child.visits)

        return max(self.children, key=score)


class PlainSearch:
    """The searches of one model.

    Args:
        model: a causal language model of transformers; its generation config says what ends a response.
        settings: see `PlainSettings`.
        finished: whether a response is complete after its last token.
        verify: the reward in [0, 1] of a complete response (or of one cut at the horizon).
    """

    def __init__(
        self,
        model: Any,
        settings: PlainSettings,
        finished: Callable[[tuple[int, ...]], bool],
        verify: Callable[[tuple[int, ...]], float],
    ) -> None:
        self.model, self.settings, self.finished, self.verify = model, settings, finished, verify

    @torch.inference_mode()
    def run(self, prompt: tuple[int, ...], seed: int = 0) -> Node:
        """The root of a finished tree. `seed` decides sampled rollouts."""
        torch.manual_seed(seed)
        root = Node(-1, 1.0)
        for _ in range(self.settings.simulations):
            path = [root]
            while path[-1].children:
                path.append(path[-1].select(self.settings.exploration))
            reward = self.evaluate(prompt, path)
            for node in path:
                node.visits += 1
                node.total += reward
        return root

    def evaluate(self, prompt: tuple[int, ...], path: list[Node]) -> float:
        """The reward of the leaf at the end of `path`: its own where the response ends there, else a rollout's."""
        leaf, response = path[-1], tuple(node.token for node in path[1:])
        if leaf.reward is not None:
            return leaf.reward
        if len(response) >= self.settings.horizon or (response and self.finished(response)):
            leaf.reward = self.verify(response)
            return leaf.reward
        leaf.children = self.expand(prompt + response)
        return self.verify(self.rollout(prompt, response))

    def expand(self, prefix: tuple[int, ...]) -> list[Node]:
        """The likeliest next tokens, priors normalised over them: one forward over the whole prefix."""
        logits = self.model(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1]
        best, tokens = logits.float().topk(self.settings.top_k)
        return [Node(*pair) for pair in zip(tokens.tolist(), best.softmax(-1).tolist(), strict=True)]

    def rollout(self, prompt: tuple[int, ...], response: tuple[int, ...]) -> tuple[int, ...]:
        """The whole response after one `generate`, cut where it is complete."""
        settings, prefix = self.settings, prompt + response
        how: dict[str, Any] = {"do_sample": False}
        if settings.rollout == "beam":
            # The best total log-probability, so no normalisation by length.
            how |= {"num_beams": settings.beams, "length_penalty": 0.0}
        elif settings.rollout == "sample":
            how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        ids = torch.tensor([prefix])
        made = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=settings.horizon - len(response),
            pad_token_id=0,
            **how,
        )
        whole = tuple(made[0, len(prompt) :].tolist())
        for end in range(len(response) + 1, len(whole)):
            if self.finished(whole[:end]):
                return whole[:end]
        return whole
