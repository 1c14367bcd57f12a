"""Recursive tree search with linked nodes, as papers have it: what the arena is compared with."""

import asyncio
import math

from scripted import hashed_reward

from alphazero_llm_trainer.engine.protocol import Limits, RolloutRequest
from alphazero_llm_trainer.mcts.mcts import mix
from alphazero_llm_trainer.mcts.seeds import derive_seed
from alphazero_llm_trainer.types import Step, ids_of


class Node:
    def __init__(self, parent, step, prior):
        self.parent, self.step, self.prior = parent, step, prior
        self.steps = [] if parent is None else [*parent.steps, step]
        self.children, self.expanded = [], False
        self.N, self.W, self.reward = 0, 0.0, None

    def back_up(self, rewards):
        for reward in rewards:
            self.N += 1
            self.W += reward
        return rewards

    @property
    def q(self):
        return self.W / self.N if self.N else 0.0


class Reference:
    """Descends while nodes are expanded, by the largest `score`, then calls `expand`."""

    def __init__(self, policy, problem, seed, config, value=None):
        self.policy, self.problem, self.seed, self.config = policy, problem, seed, config
        self.value, self.made = value, []
        root = self.node(None, Step((), (), ""))
        for _ in range(config.simulations):
            self.simulate(root)

    def node(self, parent, step, prior=1.0):
        self.made.append(Node(parent, step, prior))
        if parent is not None:
            parent.children.append(self.made[-1])
        return self.made[-1]

    def simulate(self, node):
        if node.reward is not None:
            return node.back_up([node.reward])
        if node.expanded and node.children:
            return node.back_up(self.simulate(max(node.children, key=self.score)))
        rewards = self.expand(node, derive_seed(self.seed, self.made.index(node), node.N))
        node.expanded = True
        return node.back_up(rewards)

    def puct(self, node, q, prior):
        return q + self.config.exploration * prior * math.sqrt(node.parent.N) / (1 + node.N)


class StepReference(Reference):
    """Grafts whole playouts and merges equal siblings."""

    def expand(self, node, seed):
        tokens = self.config.max_tokens - len(ids_of(node.steps))
        limits = Limits(self.config.max_depth - len(node.steps), tokens)
        if min(limits.steps, limits.tokens) <= 0:
            return []
        drawn = self.policy.draw(self.problem, node.steps, self.config.samples, seed, limits)
        rewards = []
        for one in drawn:
            earned = hashed_reward("".join(step.text for step in [*node.steps, *one.steps]))
            rewards.append(self.graft(node, one.steps, earned, node))
        return rewards

    def graft(self, node, rest, earned, leaf):
        if rest and node.reward is None:
            earned = self.graft(self.child(node, rest[0]), rest[1:], earned, leaf)
        else:
            if node.reward is None and not node.children:
                node.reward = earned
            earned = earned if node.reward is None else node.reward
        return earned if node is leaf else node.back_up([earned])[0]

    def child(self, node, step):
        for child in node.children:
            a, b = sorted((child.step.token_ids, step.token_ids), key=len)
            if child.step.text == step.text and (a == b or b[: len(a)] != a):
                return child
        return self.node(node, step)

    def score(self, node):
        if self.config.select == "ucb1":
            bonus = math.sqrt(math.log(node.parent.N) / node.N) if node.N else math.inf
            return node.q + self.config.exploration * bonus if node.N else bonus
        siblings = node.parent.children
        priors = [math.exp(math.fsum(one.step.logprobs)) for one in siblings]
        return self.puct(node, node.q, priors[siblings.index(node)] / math.fsum(priors))


class TokenReference(Reference):
    """PUCT over tokens, without memory of any rollout."""

    def expand(self, node, seed):
        ids, config = ids_of(node.steps), self.config
        prompt, limit = self.policy.prompt_ids(self.problem), config.max_tokens - len(ids)
        if self.policy.verdict(ids) or limit <= 0:
            node.reward = hashed_reward(self.policy.text(ids))
            return [node.reward]
        top = self.policy.ranked(prompt + ids, config.top_k)
        weights = [math.exp(logprob - top[0][1]) for _, logprob in top]
        for (token, _), weight in zip(top, weights, strict=True):
            self.node(node, Step((token,), (), ""), weight / math.fsum(weights))
        estimate = None if self.value is None else asyncio.run(self.value(prompt + ids))
        if config.rollout == "none":
            return [estimate]
        rollout = self.policy.rollout(RolloutRequest(prompt, ids, config.rollout, limit, seed, 1))
        reward = hashed_reward(self.policy.text(ids + asyncio.run(rollout)[0].token_ids))
        return [reward if estimate is None else mix(estimate, reward, config.rollout_weight)]

    def score(self, node):
        low, span = 0.0, 1.0
        if self.value is not None:  # MuZero, appendix B: by the least and largest Q of the tree
            seen = [made.q for made in self.made[1:] if made.N] or [0.0]
            low, span = min(seen), max(seen) - min(seen) or 1.0
        return self.puct(node, (node.q - low) / span if node.N else 0.0, node.prior)
