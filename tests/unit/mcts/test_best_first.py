"""The rules that go by open nodes: PHS against a reference, with and without a value."""

import asyncio
import itertools
import math
from random import Random

import pytest
import scripted
from scripted import Rule, ScriptedPolicy, a_problem, hashed_reward
from test_verified import Ranker

from alphazero_llm_trainer.config.sections import SearchConfig
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.eval.named_verifiers import Product
from alphazero_llm_trainer.mcts.descent import BestFirst, Live, child_shares
from alphazero_llm_trainer.mcts.driver import Search
from alphazero_llm_trainer.mcts.mcts import LeafEvaluation, Mcts, Playout
from alphazero_llm_trainer.mcts.select import open_puct, phs
from alphazero_llm_trainer.tree.arena import REJECTED, ROOT, Tree
from alphazero_llm_trainer.types import Continuation, RewardParts, Step

RULE = Rule(lambda text: float(hashed_reward(text) > 0.3))
VALUE = Ranker(lambda text: 0.01 + 0.9 * hashed_reward(text))


class Reference:
    """PHS over linked nodes, from its formula: each (parent, text, probability, V, draws)."""

    def __init__(self, scale, discount):
        self.scale, self.discount = scale, discount
        self.nodes = [{"up": None, "V": None, "draws": 0, "open": True, "below": []}]

    def share(self, node, child):
        """Of `child`, or of a step not drawn yet where it is None."""
        p = {id(one): one["p"] for one in node["below"]}
        left = max(1.0 - sum(p.values()), 0.0)
        floor = left / (len(p) + 1)
        if child is not None:
            return max(p[id(child)], floor)
        rest = 1.0 - sum(max(one, floor) for one in p.values())
        return rest * (1 + len(p)) / (1 + node["draws"])

    def score(self, node):
        way = [node]
        while way[0]["up"] is not None:
            way.insert(0, way[0]["up"])
        product = math.prod(self.share(up, down) for up, down in itertools.pairwise(way))
        product *= self.share(node, None)
        g, h = len(way), self.scale
        if node["V"] is not None:
            gamma = self.discount if self.discount < 1 else math.exp(-1)
            h *= math.log(node["V"], gamma)
        return math.log(g + h) - math.log(max(product, 1e-300)) * (1 + h / g)

    def best(self):
        alive = [node for node in self.nodes if node["open"]]
        alive = [node for node in alive if node["up"] is None or node["up"]["open"]]
        return min(alive, key=self.score)


@pytest.mark.parametrize("discount", [0.95, 1.0])
@pytest.mark.parametrize("guided", [True, False])
def test_phs_draws_where_its_formula_says(guided, discount):
    chosen = set()
    for seed in range(40):
        rng = Random(seed)
        tree, scale = Tree(), rng.choice([0.0, 1.0, 2.0, 8.0])
        tree.discount = discount
        made = Reference(scale, discount)
        mcts = Mcts(tree, BestFirst(Live(tree, 10**6), phs, scale, guided), 60)
        if guided:
            tree.V[ROOT] = made.nodes[0]["V"] = rng.uniform(0.01, 1.0)
        for _ in range(40):
            [leaf] = mcts.ask()
            parent = made.best()
            assert made.nodes[leaf.node] is parent
            chosen.add(len(tree.path(leaf.node)))
            parent["draws"] += 1
            left = max(1.0 - sum(node["p"] for node in parent["below"]), 0.0)
            p = rng.choice([1e-12, left * rng.random()])
            text = f"{len(tree)}\n"
            if rng.random() < 0.1:  # nothing fitted
                mcts.tell(leaf, LeafEvaluation(value=0.0))
                continue
            V = rng.random() if guided else None
            rejected = rng.random() < 0.2
            made.nodes.append(
                {"up": parent, "p": p, "V": V, "draws": 0, "open": not rejected, "below": []}
            )
            parent["below"].append(made.nodes[-1])
            step = Step((len(tree),), (math.log(max(p, 1e-300)),), text)
            reward = RewardParts(total=0.0) if rejected else None
            playout = Playout(Continuation((step,), False), REJECTED if rejected else None, reward)
            told = {"scores": [float(not rejected)], "values": [V] if guided else []}
            mcts.tell(leaf, LeafEvaluation([playout], estimate=0.5, **told))
    assert max(chosen) > 5


def test_shares_are_of_one_and_a_long_steps_is_an_equal_one():
    for seed in range(50):
        rng, tree = Random(seed), Tree()
        for at in range(rng.randrange(6)):
            logprob = rng.choice([-900.0, -3.0 * rng.random() - 2.0])
            tree.attach(ROOT, Step((at,), (logprob,), f"{at}"))
        drawn, new = child_shares(tree, ROOT)
        assert math.isclose(sum(drawn.values()) + new, 1.0)
        if all(tree.logprobs[child][0] == -900.0 for child in drawn):
            assert all(math.isclose(share, new) for share in drawn.values())


def grown(verifier, seed, **changes):
    asked = {"select": "phs", "simulations": 40, "verifier": verifier, **changes}
    asked["evaluate"] = scripted.unasked
    return scripted.search(ScriptedPolicy(seed), a_problem("p"), seed, **asked)


def test_without_a_value_phs_draws_one_step_a_simulation_by_the_policy_alone():
    sizes = set()
    for seed in range(20):
        tree = grown(RULE, seed, verify={"accept_above": 1.0, "reject_below": 0.3}).tree
        assert all(value is None for value in tree.V)
        assert tree.N[ROOT] == len(tree.simulations)
        past = 1
        for _, nodes, _ in tree.simulations:
            assert nodes - past <= 1
            past = nodes
        sizes.add(len(tree))
    assert max(sizes) > 10
    with pytest.raises(ConfigError, match=r"phs.*verifier"):
        Search(ScriptedPolicy(0), None, SearchConfig(select="phs"))


@pytest.mark.parametrize("verifier", [RULE, Product([RULE, VALUE])])
def test_a_search_repeats_itself_and_its_history_gives_its_visits(verifier):
    for width in (1, 3):
        tree, again = (
            grown(verifier, 4, width=width, discount=0.9, verify={"accept_above": 1.0}).tree
            for _ in range(2)
        )
        assert tree.to_dict() == again.to_dict() and not any(tree.virtual)
        past = Tree()
        past.parent, past.N, past.W = tree.parent, [0] * len(tree), [0.0] * len(tree)
        past.discount = tree.discount
        for backup in tree.backups:
            past.backup(*backup)
        assert (past.N, past.W) == (tree.N, tree.W)


@pytest.mark.parametrize("verifier", [RULE, Product([RULE, VALUE])])
def test_a_tree_is_the_same_alone_and_among_others(verifier):
    settings = SearchConfig(select="phs", simulations=25, discount=0.9)

    async def of(*seeds):
        one = Search(ScriptedPolicy(2), None, settings, verifier=verifier)
        results = await asyncio.gather(*(one.run(a_problem("p"), seed) for seed in seeds))
        return [result.tree.to_dict() for result in results]

    assert asyncio.run(of(*range(5))) == [asyncio.run(of(seed))[0] for seed in range(5)]


# -- backup by maximum -----------------------------------------------------------------------------


def largest(tree, node):
    """The largest gamma^k of V and of what ended, k steps below `node`; a rejected step has
    none."""
    if tree.reward[node] is not None:
        return tree.reward[node]
    own = [] if tree.V[node] is None or node == ROOT else [tree.V[node]]
    below = [tree.discount * largest(tree, child) for child in tree.children[node]
             if tree.verdict[child] != REJECTED]  # fmt: skip
    return max([*own, *below], default=0.0)


def test_the_largest_value_is_kept_as_it_would_be_computed_from_scratch():
    deep = 0
    for seed in range(30):
        asked = {"select": "puct", "simulations": 60, "discount": 0.9, "width": 1 + 2 * (seed % 2)}
        judge = Product([RULE, VALUE])
        mean, tree = (
            grown(judge, seed, backup=way, verify={"accept_above": 1.0}, **asked).tree
            for way in ("mean", "max")
        )
        for node in range(1, len(tree)):
            assert math.isclose(tree.best[node], largest(tree, node))
            assert tree.best[node] >= tree.q(node) - 1e-12 and tree.verdict[ROOT] is None
            deep = max(deep, len(tree.path(node)))
        assert mean.best is None
        again = Tree.from_dict(tree.to_dict())
        again.maximise()  # from the history
        assert again.best == tree.best and again.to_dict() == tree.to_dict()
        again.maximise()
        assert again.best == tree.best
    assert deep > 4


def test_a_state_is_worth_its_best_step_however_many_lead_nowhere():
    tree = Tree()
    tree.discount = 0.9
    one, other = (tree.attach(ROOT, Step((at,), (-1.0,), f"{at}")) for at in range(2))
    tree.backup(one, 0.5)
    tree.backup(other, 0.4)
    for at in range(7):
        tree.backup(tree.attach(one, Step((9, at), (-3.0,), f"9{at}")), 0.05 if at else 0.6)
    arms = [one, other]
    tree.rescale()
    assert open_puct(tree, ROOT, 0.0, arms) == other
    tree.maximise()
    tree.rescale()
    assert tree.best[one] == pytest.approx(0.54) and open_puct(tree, ROOT, 0.0, arms) == one
