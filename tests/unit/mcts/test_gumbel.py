"""Gumbel search: equal to mctx, a schedule that adds up, simulations in flight, budgets of tokens,
and its targets.
"""

import importlib.util
import math

import pytest
from scripted import Rule, ScriptedPolicy, hashed_reward, search
from tables import CHECKOUT, TESTS, read_json

from alphazero_llm_trainer.mcts.descent import closed_rule, rescaled_rule
from alphazero_llm_trainer.mcts.gumbel import (
    GumbelRoot,
    gumbel,
    node_logits,
    prior_logits,
    sampled_logit,
    softmax,
)
from alphazero_llm_trainer.mcts.mcts import LeafEvaluation, Mcts
from alphazero_llm_trainer.mcts.select import open_gumbel, puct
from alphazero_llm_trainer.tree.arena import ROOT, Tree
from alphazero_llm_trainer.types import Step

GUMBEL = closed_rule(gumbel, 0.1)
CASES = read_json(TESTS / "golden" / "gumbel.json")
SCALED = read_json(TESTS / "golden" / "scaled_puct.json")


def golden_script():
    """scripts/gumbel_golden.py, whose tables the golden trees were searched on. It needs mctx in
    `main` alone.
    """
    spec = importlib.util.spec_from_file_location(
        "gumbel_golden", CHECKOUT / "scripts" / "gumbel_golden.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def searched(case, rule, discount=1.0):
    """A golden case searched by `rule`: the tree, and its nodes in the order they were valued, as
    (parent, action) by mctx's numbers.
    """
    script, actions = golden_script(), case["actions"]
    logits, values = script.tables(case["seed"], actions)
    tree = Tree()
    tree.discount = discount
    mcts = Mcts(tree, rule, case["simulations"] + 1)  # the first one evaluates the root
    states, made = {ROOT: 0}, {ROOT: 0}  # of a node: its state in the game, its number in mctx
    order = []
    while leaves := mcts.ask():
        [leaf] = leaves
        state = states[leaf.node]
        steps = [Step((action,), (0.0,), f"{action} ") for action in range(actions)]
        mcts.tell(
            leaf, LeafEvaluation(steps=steps, priors=softmax(logits[state]), value=values[state])
        )
        for action, child in enumerate(tree.children[leaf.node]):
            states[child] = script.child(state, action, actions)
        if leaf.node != ROOT:
            made[leaf.node] = len(made)
            order.append([made[tree.parent[leaf.node]], tree.token_ids[leaf.node][0]])
    return tree, order


# -- (a) mctx --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['actions']} actions, {case['simulations']}"
)
def test_the_search_is_mctx_s_on_the_same_priors_values_and_noise(case):
    root = GumbelRoot(0, case["considered"], GUMBEL)
    root.noise = case["noise"]
    tree, order = searched(case, root)
    actions = case["actions"]
    children = tree.children[ROOT]
    visits = [tree.N[child] for child in children]
    assert order == case["nodes"], "every simulation goes where mctx's does"
    assert visits == case["root_visits"]
    scores = node_logits(tree, ROOT, children, 0.1)
    assert softmax(scores) == pytest.approx(case["policy"], abs=1e-9)
    best = max(
        (i for i in range(actions) if visits[i] == max(visits)),
        key=lambda i: case["noise"][i] + scores[i],
    )
    assert best == case["action"]


@pytest.mark.parametrize(
    "case", SCALED, ids=lambda case: f"{case['actions']} actions, c {case['c']}"
)
def test_puct_over_scaled_q_is_mctx_s(case):
    """Q is scaled by the least and largest of the whole tree, and a step away is discounted."""
    rule = rescaled_rule(closed_rule(puct, case["c"]))
    tree, order = searched(case, rule, case["discount"])
    assert order == case["nodes"], "every simulation goes where mctx's does"
    assert [tree.N[child] for child in tree.children[ROOT]] == case["root_visits"]
    assert tree.q(ROOT) == pytest.approx(case["root_value"], abs=1e-9)


# -- (c) formulas ----------------------------------------------------------------------------------


def test_a_sampled_step_weighs_its_probability_over_that_of_being_drawn():
    assert sampled_logit(math.log(0.25), 1) == pytest.approx(0.0) == sampled_logit(0.0, 5)
    # Long steps, never drawn twice, weigh the same whatever their probabilities.
    assert sampled_logit(-90.0, 8) == pytest.approx(sampled_logit(-40.0, 8))
    # Eight draws of two steps, p .9 and .05: p / (1 - (1 - p)^8), whose ratio is 6.06 (with two
    # draws 1.77).
    tree, steps = Tree(), [Step((i,), (math.log(p),), f"{i}\n") for i, p in enumerate((0.9, 0.05))]
    for i in (0, 0, 0, 1, 0, 0, 0, 0):
        tree.attach(ROOT, steps[i])
    high, low = prior_logits(tree, ROOT, tree.children[ROOT])
    assert math.exp(high - low) == pytest.approx(6.06, abs=0.01)


# -- (d) in flight ---------------------------------------------------------------------------------


def fan(root, values, iterations):
    """A search whose root has been evaluated: children with even priors."""
    mcts = Mcts(Tree(), root, iterations)
    [leaf] = mcts.ask()
    steps = [Step((i,), (-1.0,), str(i)) for i in range(len(values))]
    mcts.tell(leaf, LeafEvaluation(steps=steps, priors=[1 / len(values)] * len(values), value=0.5))
    return mcts


def test_a_round_is_asked_at_once_and_the_next_one_waits_for_its_values():
    root = GumbelRoot(3, 4, GUMBEL)
    mcts = fan(root, values := [0.1, 0.9, 0.2, 0.8], 9)
    leaves = mcts.ask(8)
    # Four arms once each; which two are left is known when all four are told.
    assert sorted(leaf.node for leaf in leaves) == [1, 2, 3, 4] and mcts.ask(8) == leaves
    for leaf in leaves[:3]:
        mcts.tell(leaf, LeafEvaluation(value=values[leaf.node - 1]))
    assert mcts.ask(8) == leaves[3:]
    mcts.tell(leaves[3], LeafEvaluation(value=values[leaves[3].node - 1]))
    assert mcts.tree.N[1:] == [1, 1, 1, 1]
    while leaves := mcts.ask(8):
        for leaf in leaves:
            mcts.tell(leaf, LeafEvaluation(value=values[leaf.node - 1]))
    assert mcts.tree.N[1:] == [1, 3, 1, 3] and not any(mcts.tree.virtual)


def through_root_children(tree):
    """Simulations that went through each child of the root."""
    counts = dict.fromkeys(tree.children[ROOT], 0)
    for leaf, _, _ in tree.simulations:
        if leaf != ROOT:
            counts[tree.path(leaf)[0]] += 1
    return counts


def verified_search(seed, select="gumbel", **changes):
    half = Rule(lambda text: 0.1 + 0.8 * hashed_reward(text))
    changes |= {"verify": {"accept_above": 1.0, "reject_below": 0.15}, "select": select}
    policy = ScriptedPolicy(seed, words=9, close=0.2)
    return search(policy, seed=seed, verifier=half, simulations=1000, **changes)


def test_a_budget_of_tokens_is_halved_under_a_verifier():
    shares = []
    for seed in range(6):
        result = verified_search(seed, budget_tokens=2500, candidates=8)
        assert result.ended_by == "tokens" and result.cost.sampled_tokens <= 2500
        tree = result.tree
        drawn = sum(leaf == ROOT for leaf, _, _ in tree.simulations)
        assert drawn >= 8 and all(leaf == ROOT for leaf, _, _ in tree.simulations[:8])
        counts = sorted(through_root_children(tree).values(), reverse=True)
        if len(counts) > 3:
            shares.append(sum(counts[:2]) / sum(counts))
    # With rounds for a thousand simulations the first one would never end, and all would be visited
    # equally.
    assert len(shares) > 2 and min(shares) > 0.5


def test_an_undrawn_step_is_completed_by_the_mixed_value():
    tree = Tree()
    good, bad = (tree.attach(ROOT, Step((i,), (math.log(0.3),), str(i))) for i in range(2))
    tree.backup(good, 1.0)
    tree.backup(bad, 0.0)
    # Completed: 1, 0 and .5; times (50 + 1) * .1. Shares of visits: 1/5, 1/5 and 2/5.
    weights = [0.3 * math.exp(5.1), 0.3, 0.4 * math.exp(2.55)]
    share = [weight / sum(weights) for weight in weights]
    assert share[0] - 1 / 5 > share[2] - 2 / 5
    assert open_gumbel(tree, ROOT, 0.1, [good, bad]) == good
    for _ in range(20):
        tree.backup(good, 1.0)
    # Of 25 visits 21 are the good one's, more than its share; the new step's 2 fall short of it.
    assert open_gumbel(tree, ROOT, 0.01, [good, bad]) == ROOT
