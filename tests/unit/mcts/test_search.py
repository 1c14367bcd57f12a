"""The search: equal to a recursive reference, its invariants, formulas, budgets, verdicts and what
counts as an answer.
"""

import copy
import json
import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import StepReference
from scripted import (
    ScriptedAdvisor,
    ScriptedPolicy,
    a_problem,
    run,
    scripted_evaluate,
    search,
)
from tables import TESTS, read_json, table

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import SearchConfig
from alphazero_llm_trainer.engine.protocol import Limits, TeacherProposal
from alphazero_llm_trainer.errors import ConfigError, DataError
from alphazero_llm_trainer.mcts import steps
from alphazero_llm_trainer.mcts.choose import choose
from alphazero_llm_trainer.mcts.descent import closed_rule
from alphazero_llm_trainer.mcts.mcts import Leaf, LeafEvaluation, Mcts, Playout
from alphazero_llm_trainer.mcts.select import SELECTORS, ucb1
from alphazero_llm_trainer.problems.registry import reading_of, source_of
from alphazero_llm_trainer.rewards import terminal
from alphazero_llm_trainer.tree.arena import REJECTED, ROOT, WHOLE, Tree
from alphazero_llm_trainer.tree.extract import step_values, trajectories
from alphazero_llm_trainer.types import Continuation, Direction, Problem, RewardParts, Step, Task

CASES = table("search")

GOLDEN = TESTS / "golden"


# -- (a) the reference -----------------------------------------------------------------------------


@pytest.mark.parametrize("select", ["ucb1", "puct"])
def test_the_arena_equals_the_recursive_reference(select):
    deepest = widest = revisited = 0
    for seed in range(100):
        rng = Random(seed)
        policy = ScriptedPolicy(seed, words=rng.randint(1, 4), close=rng.choice([0.1, 0.3, 0.6]))
        config = SearchConfig(
            select=select,
            exploration=rng.choice([0.0, 0.5, 2**0.5, 5.0]),
            simulations=rng.randint(1, 40),
            samples=rng.randint(1, 6),
            max_depth=rng.randint(1, 8),
            max_tokens=rng.choice([4, 11, 40, 160]),
        )
        problem = a_problem(f"p{seed}")
        tree = search(policy, problem, seed, **config.model_dump()).tree
        found = list(zip(tree.parent, tree.text, tree.N, tree.W, tree.reward, strict=True))
        made = StepReference(policy, problem, seed, config).made
        number = {None: -1} | {node: at for at, node in enumerate(made)}
        assert found == [
            (number[node.parent], node.step.text, node.N, node.W, node.reward) for node in made
        ], f"seed {seed}: {config}"
        deepest = max(deepest, *(len(tree.path(node)) for node in range(len(tree))))
        widest = max(widest, len(tree))
        revisited += sum(tree.N[leaf] > tree.samples[leaf] for leaf in tree.leaves())
    # The comparison saw deep trees, wide trees and terminal re-visits.
    assert deepest >= 8 and widest >= 100 and revisited >= 100


OWN = """
from alphazero_llm_trainer.mcts.select import Selector, ucb1

def last(tree, node, exploration):
    return tree.children[node][-1]

def never(tree, node, exploration, arms):
    return node

LAST, UCB1, NONE = Selector(last, never, 0.0, 0.0), Selector(ucb1, never, 2**0.5, 1.0), last
"""


def test_a_selector_of_ones_own_leads_the_descent(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)

    def tree_by(select):
        return search(ScriptedPolicy(1), select=select, simulations=20).tree

    assert tree_by(f"{file}:UCB1").to_dict() == tree_by("ucb1").to_dict()
    tree = tree_by(f"{file}:LAST")
    visited = [node for node in range(1, len(tree)) if tree.expanded[node]]
    assert len(visited) > 1
    for node in visited:
        assert node == tree.children[tree.parent[node]][-1]
    with pytest.raises(ConfigError, match=r"search\.select"):
        tree_by(f"{file}:NONE")
    with pytest.raises(ConfigError, match=r"search\.select"):
        load_config(overrides=["search.select=nearest"])


# -- (b) properties --------------------------------------------------------------------------------


def test_a_tree_is_a_table():
    tree = grown((("3 + 4 = 7\n",), 0.5, 1))
    tree.attach(ROOT, Step((3,), (-1.0,), "no\n"))
    rows = tree.rows()
    assert [(row["node"], row["parent"], row["depth"], row["N"], row["Q"]) for row in rows] == [
        (0, -1, 0, 1, 0.5), (1, 0, 1, 1, 0.5), (2, 0, 1, 0, None),
    ]  # fmt: skip
    assert (rows[1]["text"], rows[1]["verdict"]) == ("3 + 4 = 7\n", "ended")


def check_invariants(tree):
    for node in range(len(tree)):
        below = sum(tree.N[child] for child in tree.children[node])
        assert tree.N[node] >= below
        assert -1e-9 <= tree.W[node] <= tree.N[node] + 1e-9
        assert all(tree.parent[child] == node < child for child in tree.children[node])
        assert len(tree.token_ids[node]) == len(tree.logprobs[node])
        if tree.verdict[node] is not None:
            assert not tree.children[node] and tree.reward[node] is not None
            assert tree.W[node] == pytest.approx(tree.N[node] * tree.reward[node])
        texts = [(tree.text[child], tree.token_ids[child]) for child in tree.children[node]]
        assert len(set(texts)) == len(texts)


steps_strategy = st.builds(
    lambda word, end: Step((word, *((99,) if end else ())), (-0.5,) * (1 + end), f"s{word}"),
    st.integers(0, 3),
    st.booleans(),
)
playouts_strategy = st.lists(
    st.builds(
        lambda steps, reward, source: Playout(
            Continuation(tuple(steps), True, source, Direction.NONE),
            None if reward is None else "ended",
            None if reward is None else RewardParts(reward),
        ),
        st.lists(steps_strategy, max_size=4),
        st.none() | st.floats(0, 1),
        st.sampled_from(["student", "teacher:t"]),
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(playouts_strategy, max_size=8),
    st.sampled_from(["ucb1", "puct", "gumbel"]),
    st.floats(0, 3),
)
def test_invariants_hold_whatever_is_told(rounds, rule, exploration):
    tree = Tree()
    mcts = Mcts(tree, closed_rule(SELECTORS[rule].select, exploration), 20)
    for playouts in rounds:
        leaves = mcts.ask()
        if not leaves:
            break
        [leaf] = leaves
        assert mcts.ask() == [leaf] and mcts.ask()[0] is leaf  # the same until it is told
        told = tree.N[leaf.node]
        mcts.tell(leaf, LeafEvaluation(playouts))
        graded = sum(playout.reward is not None for playout in playouts)
        assert tree.N[leaf.node] == told + graded
        after = copy.deepcopy(tree.to_dict())
        mcts.tell(leaf, LeafEvaluation(playouts))  # again: nothing changes
        assert tree.to_dict() == after
        check_invariants(tree)
        loaded = Tree.from_dict(json.loads(json.dumps(tree.to_dict())))
        assert loaded.to_dict() == tree.to_dict()
        assert loaded.children == tree.children and loaded.token_ids == tree.token_ids
    assert mcts.simulation <= 20


def ended(token, reward):
    """A playout of one token that ends a response."""
    steps = (Step((token,), (-1.0,), str(token)),)
    return Playout(Continuation(steps, True), "ended", RewardParts(reward))


def begun():
    """A search of five simulations, and its first leaf."""
    mcts = Mcts(Tree(), closed_rule(ucb1, 1.0), 5)
    [leaf] = mcts.ask()
    return mcts, leaf


@pytest.mark.parametrize("reward", [-0.01, 1.01, math.nan, math.inf, -math.inf])
def test_a_reward_outside_0_to_1_changes_nothing(reward):
    mcts, leaf = begun()
    before = mcts.tree.to_dict()
    with pytest.raises(ValueError, match="outside"):
        mcts.tell(leaf, LeafEvaluation([ended(0, 0.5), ended(1, reward)]))
    assert mcts.tree.to_dict() == before and mcts.ask() == [leaf] == [Leaf(ROOT, 1)]


@pytest.mark.parametrize(
    "column, value",
    CASES["broken trees"],
)
def test_broken_saved_trees_are_data_errors(column, value):
    raw = json.loads(json.dumps(grown((("a\n", "#### 7"), 0.5, 3)).to_dict()))
    assert len(Tree.from_dict(raw)) == 3
    with pytest.raises(DataError, match=r"search it again$"):
        Tree.from_dict({**raw, column: value})


# -- (c) formulas, where the reference can't go ----------------------------------------------------


@pytest.mark.parametrize(
    "estimate, weight, value, backed_up",
    [(None, 0.25, None, 1.0), (0.2, 1.0, None, 1.0), (0.2, 0.25, None, 0.4), (0.2, 0.25, 0.2, 1.2)],
)
def test_a_playout_is_mixed_with_the_leafs_value_from_the_leaf_on(
    estimate, weight, value, backed_up
):
    mcts, leaf = begun()
    told = {"estimate": estimate, "rollout_weight": weight, "value": value}
    mcts.tell(leaf, LeafEvaluation([ended(1, 1.0)], **told))
    assert mcts.tree.W[ROOT] == pytest.approx(backed_up) and mcts.tree.W[1] == 1.0
    assert mcts.tree.V[ROOT] == estimate and mcts.tree.V[1] is None


# -- (d) golden trees ------------------------------------------------------------------------------


def golden(select):
    result = search(
        ScriptedPolicy(2024, words=3, close=0.3),
        a_problem("golden"),
        17,
        select=select,
        simulations=12,
        samples=3,
        max_depth=6,
        max_tokens=60,
        exploration=2**0.5,
    )
    tree = result.tree.to_dict()
    keep = ("parent", "text", "N", "W", "samples", "expanded", "verdict", "reward")
    return {
        "choice": None if result.choice is None else [result.choice.node, result.choice.answer],
        "sampled_tokens": result.cost.sampled_tokens,
        "tree": {
            name: [round(x, 12) if isinstance(x, float) else x for x in tree[name]] for name in keep
        },
    }


@pytest.mark.parametrize("select", ["ucb1", "puct"])
def test_golden_trees(select):
    """Pinned trees. When a change is meant: `PYTHONPATH=tests python` this file, then read the
    difference.
    """
    pinned = read_json(GOLDEN / f"{select}.json")
    assert golden(select) == pinned
    assert len(pinned["tree"]["parent"]) > 20


# -- (e) depth -------------------------------------------------------------------------------------


def test_a_tree_of_depth_2000_is_searched_saved_and_read():
    mcts, leaf = begun()
    steps = tuple(Step((i,), (-0.1,), f"step {i}\n") for i in range(2000))
    mcts.tell(
        leaf, LeafEvaluation([Playout(Continuation(steps, True), "ended", RewardParts(0.75))])
    )
    while leaves := mcts.ask():
        mcts.tell(leaves[0], LeafEvaluation())
    again = Tree.from_dict(json.loads(json.dumps(mcts.tree.to_dict())))
    [found] = trajectories(again)
    assert found.token_ids == tuple(range(2000)) and again.W[ROOT] == 0.75
    assert len(step_values(found, found.reward, again.N, again.W)) == 2000
    assert choose(again, "visits").node == 2000


# -- (f) budgets, verdicts, teachers ---------------------------------------------------------------


def test_stop_returns_the_best_so_far():
    policy = ScriptedPolicy(5)
    result = search(policy, simulations=1000, stop=lambda: policy.calls >= 4)
    assert result.ended_by == "stopped" and policy.calls == 4 and result.choice is not None
    whole = search(ScriptedPolicy(5), simulations=200).tree
    known = len(result.tree)
    assert whole.text[:known] == result.tree.text and len(whole) > known


@pytest.mark.parametrize("texts, ended, most_steps, most_tokens, verdict", CASES["verdicts"])
def test_verdicts(texts, ended, most_steps, most_tokens, verdict):
    response = Continuation(tuple(Step((1,), (-1.0,), text) for text in texts), ended)
    assert steps.end_verdict(response, Limits(most_steps, most_tokens)) == verdict


def test_teachers_steps_become_children_with_source_and_direction():
    asked = []

    async def evaluate(problem, steps, directions, verdict):
        assert len(directions) == len(steps)
        asked.append(directions[:2])
        return await scripted_evaluate(problem, steps, directions, verdict)

    good = ("right step", "#### 1", "w0")  # the last is the student's own step, too
    proposals = [TeacherProposal(text, "teacher:good", Direction.RIGHT) for text in good]
    proposals.append(TeacherProposal("wrong step", "teacher:bad", Direction.WRONG))
    result = search(
        ScriptedPolicy(1, words=1),
        simulations=30,
        samples=2,
        advisor=ScriptedAdvisor(proposals),
        evaluate=evaluate,
    )
    tree = result.tree
    top = {
        tree.text[child]: (tree.source[child], tree.direction[child], child)
        for child in tree.children[ROOT]
    }
    assert top["right step\n"][:2] == ("teacher:good", "right")
    assert top["wrong step\n"][:2] == ("teacher:bad", "wrong")
    assert top["w0\n"][:2] == ("student", "right")
    assert tree.verdict[top["#### 1"][2]] == "answer"
    # The rollout below a teacher's step is the student's own, unless a teacher was asked there.
    below = tree.children[top["right step\n"][2]]
    assert below and tree.source[below[0]] == "student"
    # Directions on the way down are given to the evaluation too.
    assert (Direction.RIGHT, Direction.WRONG) in map(tuple, asked)
    assert result.cost.scored_tokens > 0
    check_invariants(tree)


def test_the_finished_checker_ends_a_response_where_it_says_so():
    asked = []

    async def finished(problem, response, rule):
        asked.append(response)
        return rule or "w1" in response

    policy = ScriptedPolicy(2, words=2, close=0.2)
    tree = search(policy, simulations=8, max_depth=3, finished=finished).tree
    # The rule's final-answer lines are never put to it.
    assert asked and not any("####" in response for response in asked)
    checked = [leaf for leaf in tree.leaves() if tree.verdict[leaf] == "checked"]
    assert checked and all(tree.response(leaf).count("w1") == 1 for leaf in checked)
    assert all("w1" in tree.text[leaf] for leaf in checked)


# -- (g) choosing ----------------------------------------------------------------------------------


def grown(*responses):
    """A tree of (steps, reward, visits) responses."""
    tree = Tree()
    for texts, reward, visits in responses:
        node = ROOT
        for text in texts:
            node = tree.attach(node, Step(tuple(map(ord, text)), (-1.0,) * len(text), text))
        tree.finish(node, "answer" if "####" in texts[-1] else "ended", RewardParts(reward))
        for _ in range(visits):
            tree.backup(node, reward)
    return tree


def test_choose_by_hand():
    tree = grown(
        (("a\n", "#### 7"), 0.5, 3),  # 7 earns 1.5 + 0.4
        (("b\n", "#### 7.0"), 0.4, 1),
        (("b\n", "#### 8"), 0.9, 2),  # 8 earns 1.8
        (("c\n", "no answer"), 1.0, 1),
    )
    vote, value, visits = (choose(tree, rule) for rule in ("vote", "value", "visits"))
    assert (vote.answer, vote.response) == ("7", "a\n#### 7")
    assert vote.why.startswith("51%")  # 1.9 of 3.7
    assert (value.response, value.answer, value.value) == ("c\nno answer", None, 1.0)
    # b has 3 visits as a has, and earned more.
    assert (visits.response, visits.visits) == ("b\n#### 8", 2)


@pytest.mark.parametrize(
    "responses",
    [
        # A token has log-probability -1: the likelier response earns more, however often visited.
        ((("a\n", "#### 7"), 0.9, 3), (("bb\n", "#### 7"), 0.9, 3), (("#### 8",), 0.5, 1)),
        # So unlikely that exp gives 0 for all of them.
        ((("a" * 900, "#### 7"), 0.9, 1), (("b" * 899, "#### 8"), 0.9, 1)),
        # One without an answer is far likelier, and has no vote.
        ((("no",), 0.9, 1), (("a" * 900, "#### 7"), 0.1, 1), (("b" * 899, "#### 8"), 0.9, 1)),
    ],
)
def test_a_vote_by_probability(responses):
    assert choose(grown(*responses), "mass").answer == "8"


def test_a_rejected_step_is_no_response():
    tree = grown((("a\n", "#### 7"), 0.0, 1), (("#### 8",), 0.0, 3))
    alone = grown((("#### 8",), 0.0, 3))
    for one, step in ((tree, 3), (alone, 1)):
        one.finish(step, REJECTED, RewardParts(0.0))
    # The most visited path ends in the rejected step: then the value decides.
    for rule in ("vote", "value", "visits"):
        chosen = choose(tree, rule)
        assert (chosen.answer, chosen.visits) == ("7", 1)
        assert choose(alone, rule) is None


# -- (h) what counts as an answer ------------------------------------------------------------------


@pytest.mark.parametrize("response, verdict, states, right", CASES["ends"])
def test_a_stated_answer_counts_in_training_and_search_as_in_evaluation(
    response, verdict, states, right
):
    problem, lines = Problem("p", "q", "gsm8k"), [Step((1,), (-1.0,), response)]
    weights = load_config().rewards
    graded = terminal.make_evaluate(weights, None, {problem.id: Task(problem, "42")})
    assert run(lambda: graded(problem, lines, [], verdict)).hre == float(right)
    assert run(lambda: terminal.finished_earns_one(problem, lines, [], verdict)).total == float(
        states
    )
    assert (
        source_of(problem).grade(response, Task(problem, "42"), strict=verdict not in WHOLE).correct
        == right
    )
    if verdict in WHOLE:
        assert reading_of(problem)(response) == ("42" if right else None)


if __name__ == "__main__":  # regenerates the golden trees
    GOLDEN.mkdir(exist_ok=True)
    for rule in ("ucb1", "puct"):
        (GOLDEN / f"{rule}.json").write_text(
            json.dumps(golden(rule), indent=1) + "\n", encoding="utf-8"
        )
