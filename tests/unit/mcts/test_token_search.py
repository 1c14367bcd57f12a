"""Token-level search: equal to a recursive reference, virtual loss, mixing, data generation,
inference.
"""

import asyncio
import json
import math
import sys
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import TokenReference
from scripted import (
    ScriptedPolicy,
    ScriptedTokens,
    a_problem,
    hashed_reward,
    run,
    scripted_evaluate,
    search,
)
from support import EOS, LINE_ENDS, library_logprobs, tiny_engine, tiny_llama
from tables import TESTS, read_json

from alphazero_llm_trainer.config.sections import SearchConfig
from alphazero_llm_trainer.engine.protocol import RolloutRequest
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.mcts.descent import closed_rule
from alphazero_llm_trainer.mcts.driver import Search
from alphazero_llm_trainer.mcts.mcts import LeafEvaluation, Mcts
from alphazero_llm_trainer.mcts.seeds import derive_seed
from alphazero_llm_trainer.mcts.select import SELECTORS, puct
from alphazero_llm_trainer.policy.engine_tokens import EngineTokens, beam_search
from alphazero_llm_trainer.tree.arena import ROOT, Rollout, Tree
from alphazero_llm_trainer.tree.extract import OUTSIDE, step_values, trajectories
from alphazero_llm_trainer.types import RewardParts, Step, ids_of

GOLDEN = TESTS / "golden" / "token.json"


token_search = partial(search, mode="token", max_tokens=20)


# -- (a) the reference -----------------------------------------------------------------------------


async def hashed_value(token_ids):
    """FAKE value network."""
    return hashed_reward(f"V{token_ids}")


hashed_value.rollout_weight, hashed_value.computes = 0.5, False


@pytest.mark.parametrize("rollout", ["greedy", "sample", "none"])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_token_search_equals_the_recursive_reference(rollout, weight):
    deepest = ended = 0
    for seed in range(25):
        rng = Random(seed)
        value = hashed_value if weight < 1 or rollout == "none" else None
        config = SearchConfig(
            mode="token",
            exploration=rng.choice([0.5, 2.0, 5.0]),
            simulations=rng.randint(1, 60),
            top_k=rng.randint(1, 7),
            max_tokens=rng.choice([3, 8, 20]),
            rollout=rollout,
            rollout_weight=weight,
        )
        policy, problem = ScriptedTokens(seed, close=rng.choice([0.2, 1.0])), a_problem(f"p{seed}")
        tree = token_search(policy, problem, seed, **{**config.model_dump(), "value": value}).tree
        ids = [tree.sequence(node)[0] for node in range(len(tree))]
        made = TokenReference(policy, problem, seed, config, value).made
        assert ids == [ids_of(node.steps) for node in made], seed
        assert ([node.N for node in made], [node.W for node in made]) == (tree.N, tree.W), seed
        assert tree.reward == [node.reward for node in made]
        assert tree.prior[1:] == [node.prior for node in made[1:]]
        deepest = max(deepest, *map(len, ids))
        ended += sum(tree.verdict[n] == "ended" and tree.N[n] > 1 for n in range(len(tree)))
        assert all(tree.samples[leaf] == 1 for leaf in tree.leaves())
    # The comparison saw deep trees and terminal re-visits.
    assert deepest >= 6 and ended >= 5


def test_a_greedy_rollout_expands_its_own_path_for_free_and_read_again_is_no_new_sample():
    policy = ScriptedTokens(3)
    tree = token_search(policy, simulations=60, rollout="greedy").tree
    expanded = sum(tree.expanded[n] and tree.verdict[n] is None for n in range(len(tree)))
    # Nodes on a known rollout's path asked for nothing: every rollout brings the top-k of each
    # step.
    assert policy.calls["rollout"] < expanded < 60 and policy.calls["topk"] == 0
    visits, samples = sum(r.count for r in tree.rollouts), sum(r.samples for r in tree.rollouts)
    assert samples == policy.calls["rollout"] < visits
    assert sum(t.samples for t in trajectories(tree)) < visits


def test_the_golden_token_tree():
    assert json.loads(json.dumps(golden())) == read_json(GOLDEN)


def golden():
    tree = token_search(
        ScriptedTokens(2024), a_problem("golden"), 17, simulations=20, top_k=3, exploration=2.0
    ).tree
    return {**tree.to_dict(), "W": [round(w, 9) for w in tree.W]}


# -- (b) virtual loss ------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.sampled_from(["token", "step"]),
    st.sampled_from(["ucb1", "puct", "gumbel"]),
)
def test_any_width_uses_every_simulation_and_leaves_no_virtual_loss(seed, width, mode, select):
    asked = {"mode": mode, "select": select, "simulations": 20, "samples": 2, "width": width}

    def searched():
        policy = (
            ScriptedTokens(seed) if mode == "token" else ScriptedPolicy(seed, words=9, close=0.2)
        )
        return search(policy, seed=seed, **asked).tree

    tree = searched()
    assert len(tree.simulations) == 20 and not any(tree.virtual)
    assert tree.to_dict() == searched().to_dict(), "twice the same"
    for node in range(len(tree)):
        assert tree.N[node] >= sum(tree.N[child] for child in tree.children[node])
        assert -1e-9 <= tree.W[node] <= tree.N[node] + 1e-9


def test_visits_and_values_come_back_exactly_from_simulations_in_flight():
    mcts = Mcts(Tree(), closed_rule(puct, 2.0), 50)
    tree, steps = mcts.tree, [Step((i,), (-1.0,), str(i)) for i in range(4)]
    [root] = mcts.ask(8)  # nothing else can be asked while the root is being expanded
    mcts.tell(root, LeafEvaluation(steps=steps, priors=[0.3, 0.27, 0.23, 0.2], value=0.5))
    leaves = mcts.ask(8)
    assert [leaf.node for leaf in leaves] == [1, 2, 3, 4] and mcts.ask(8) == leaves
    assert tree.virtual == [4, 1, 1, 1, 1] and tree.N == [1, 0, 0, 0, 0]
    for leaf in reversed(leaves):  # told in another order, and again
        mcts.tell(leaf, LeafEvaluation(value=leaf.node / 10))
        mcts.tell(leaf, LeafEvaluation(value=1.0))
    assert not any(tree.virtual) and tree.N == [5, 1, 1, 1, 1]
    assert pytest.approx([1.5, 0.1, 0.2, 0.3, 0.4]) == tree.W


def test_virtual_loss_by_hand():
    """The better of two children is left for the other one while simulations fly below it, by every
    rule; under a verifier, where a third step may be drawn, too.
    """
    steps, rules = [Step((i,), (math.log(p),), str(i)) for i, p in enumerate((0.6, 0.3))], SELECTORS
    for name, priors in (("ucb1", None), ("puct", None), ("puct", [0.6, 0.4]), ("gumbel", None)):
        tree = Tree()
        if priors is None:
            for step in steps:
                tree.attach(ROOT, step)
        else:
            tree.expand(ROOT, steps, priors)
        tree.N[:], tree.W[:] = [8, 5, 3], [2.0, 3.5, 1.65]
        constant = 0.005 if name == "gumbel" else 0.3
        for flying, goes_to in ((0, 1), (8, 2), (0, 1)):
            tree.hold(1, flying - tree.virtual[1])
            assert rules[name].select(tree, ROOT, constant) == goes_to, (name, flying)
            if priors is None:
                assert rules[name].open(tree, ROOT, constant, [1, 2]) == goes_to, (name, flying)


# -- (d) values and rollouts -----------------------------------------------------------------------


def test_without_rollouts_the_value_network_alone_decides_and_one_rollout_ends_it():
    policy, asked = ScriptedTokens(8, close=0.1), {"rollout": "none", "value": hashed_value}
    result = token_search(policy, simulations=30, exploration=2.0, **asked)
    tree, choice = result.tree, result.choice
    assert policy.calls["rollout"] == 1 and tree.N[ROOT] == 30
    path = tree.path(choice.node)
    for parent, child in zip([ROOT, *path], path, strict=False):
        assert tree.N[child] == max(tree.N[other] for other in tree.children[parent])
    assert choice.response.endswith(".") or len(choice.response) == 20


def test_step_search_with_values_alone_proposes_single_steps_and_ends_in_a_whole_response():
    found, asked = set(), {"select": "puct", "rollout": "none", "simulations": 8, "samples": 3}
    for seed in range(6):
        policy = ScriptedPolicy(seed, close=0.2)
        result = search(policy, seed=seed, value=hashed_value, **asked)
        assert result.tree.V[ROOT] is not None
        found.add(result.tree.verdict[result.choice.node])
    assert found <= {"answer", "ended", "depth", "length"} and found & {"answer", "ended"}


@pytest.mark.parametrize("change", [{"rollout": "none"}, {"rollout_weight": 0.5}])
def test_values_without_a_value_network_are_refused(change):
    with pytest.raises(ConfigError, match=r"search\.value"):
        token_search(ScriptedTokens(0), **change)


# -- (e) data generation ---------------------------------------------------------------------------


async def graded(problem, steps, directions, verdict):
    """FAKE correctness: right where the response's hash says so."""
    right = float(hashed_reward("".join(step.text for step in steps)) > 0.5)
    return RewardParts(right, hre=right)


def test_a_random_prefix_of_the_first_rollout_moves_the_root_deeper():
    lengths = []
    for seed in range(60):
        policy = ScriptedTokens(seed, close=0.02)
        result = token_search(policy, seed=seed, simulations=8, evaluate=graded, generating=True)
        tree = result.tree
        prefix = tree.token_ids[1] if len(tree.children[ROOT]) == 1 else ()
        lengths.append(len(prefix))
        assert tree.N[ROOT] == 8 == (tree.N[1] if prefix else 8)
        prompt, of = policy.prompt_ids(a_problem()), derive_seed(seed, "first")
        first, _ = asyncio.run(policy.rollout(RolloutRequest(prompt, (), "sample", 20, of, 5)))
        assert first.token_ids[: len(prefix)] == prefix
        # The first rollout is the first simulation's, wherever the root went.
        assert first.token_ids in [response.token_ids for response in trajectories(tree)]
    assert 12 <= sum(map(bool, lengths)) <= 40 and set(lengths) <= set(range(16))


def test_a_tree_ends_after_enough_right_rollouts():
    result = token_search(
        ScriptedTokens(2), simulations=100, evaluate=graded, generating=True, enough_correct=3
    )
    right = sum(r.count for r in result.tree.rollouts if r.hre == 1.0)
    assert (
        result.ended_by == "enough"
        and right >= 3
        and result.saved == 100 - result.tree.N[ROOT] > 50
    )


# -- (f) budgets -----------------------------------------------------------------------------------


def test_a_response_never_outgrows_the_context():
    policy, problem = engine_tokens(max_context=32), a_problem("p" * 20)
    prompt = len(policy.prompt_ids(problem))
    for rollout in ("greedy", "sample", "beam"):
        tree = token_search(
            policy, problem, simulations=30, top_k=3, rollout=rollout, max_tokens=200
        ).tree
        assert max(prompt + len(t.token_ids) for t in trajectories(tree)) == 32


# -- (g) rollouts as data --------------------------------------------------------------------------


def test_rollouts_sink_to_the_deepest_node_they_pass():
    tree = Tree()
    tree.expand(ROOT, [Step((1,), (-0.1,), "a"), Step((2,), (-0.2,), "b")], [0.5, 0.5])
    tree.expand(1, [Step((3,), (-0.3,), "c")], [1.0])
    for node, ids, reward in ((ROOT, (1, 3, 4), 1.0), (1, (3, 4), 1.0), (ROOT, (5,), 0.0)):
        logprobs = tuple(-token / 10 for token in ids)
        tree.rollouts.append(Rollout(node, ids, logprobs, "", "ended", reward, reward, None))
    tree.sink_rollouts(lambda ids: "".join(chr(96 + i) for i in ids))
    assert [(r.node, r.token_ids, r.logprobs, r.text, r.count) for r in tree.rollouts] == [
        (3, (4,), (-0.4,), "d", 2), (ROOT, (5,), (-0.5,), "e", 1),
    ]  # fmt: skip
    tree.N[:], tree.W[:] = [4, 3, 0, 3], [3.0, 3.0, 0.0, 3.0]
    first, second = trajectories(tree)
    assert (first.token_ids, first.nodes, first.samples) == ((1, 3, 4), (1, 3, OUTSIDE), 2)
    assert step_values(first, 1.0, tree.N, tree.W) == [(1.0, 0.75), (1.0, 1.0), (1.0, 1.0)]
    assert step_values(second, 0.0, tree.N, tree.W) == [(0.0, 0.75)]


# -- (h) on a real engine --------------------------------------------------------------------------


class TinyStudent:
    """What EngineTokens needs of a student, over a tiny real Llama: one character a token."""

    def __init__(self, engine):
        self.engine = engine

    def prompt_ids(self, question):
        return tuple(5 + ord(c) % 50 for c in question)

    def decode(self, ids):
        return "".join("" if i == EOS else "\n" if i in LINE_ENDS else chr(48 + i) for i in ids)

    def lead(self):
        return ""


def engine_tokens(**more):
    return EngineTokens(TinyStudent(tiny_engine(**more)), 1.0, 3)


@pytest.mark.parametrize("rollout", ["greedy", "sample", "beam"])
def test_the_same_tree_alone_in_32_and_concurrent(rollout):
    config = SearchConfig(mode="token", simulations=10, top_k=4, max_tokens=12, rollout=rollout)

    def searched(*numbers, **engine):
        one = Search(engine_tokens(**engine), scripted_evaluate, config)

        async def main():
            return await asyncio.gather(*(one.run(a_problem(f"p{i}"), i) for i in numbers))

        return [result.tree for result in run(main)]

    together, crowded = searched(*range(32)), searched(*range(32), max_batch=3)
    for i in (0, 7, 31):
        [alone] = searched(i)
        for other in (together[i], crowded[i]):
            for name in ("parent", "token_ids", "N", "reward"):
                assert getattr(other, name) == getattr(alone, name), name
            assert pytest.approx(alone.W) == other.W
            for mine, theirs in zip(alone.logprobs, other.logprobs, strict=True):
                assert mine == pytest.approx(theirs, abs=1e-5)


def test_priors_and_logprobs_are_the_librarys():
    model = tiny_llama()
    policy = EngineTokens(TinyStudent(tiny_engine(model)), 1.0, 3)
    tree = token_search(policy, simulations=12, top_k=4, rollout="greedy").tree
    for node, children in enumerate(tree.children):
        if children:
            ids = [*policy.prompt_ids(a_problem()), *tree.sequence(node)[0]]
            values, best = library_logprobs(model, ids)[-1].topk(4)
            priors = values.softmax(0).tolist()
            expected = zip(best.tolist(), values.tolist(), priors, strict=True)
            for child, (token, logprob, prior) in zip(children, expected, strict=True):
                assert tree.token_ids[child] == (token,)
                assert tree.logprobs[child] == pytest.approx((logprob,), abs=1e-5)
                assert tree.prior[child] == pytest.approx(prior, abs=1e-5)


def test_beam_rollouts_find_what_enumeration_finds():
    model, prefix = tiny_llama(3), (7, 8, 9)

    def beam(width, limit):
        done = lambda ids: ids[-1] == EOS  # noqa: E731
        return run(lambda: beam_search(tiny_engine(model), prefix, width, limit, 4, done))[0]

    # A beam as wide as the vocabulary is exhaustive over two steps; one of 1 is greedy.
    first, best = library_logprobs(model, prefix)[-1], -math.inf
    for a in range(60):
        rest = 0.0 if a == EOS else float(library_logprobs(model, [*prefix, a])[-1].max())
        best = max(best, float(first[a]) + rest)
    assert math.fsum(beam(60, 2).logprobs) == pytest.approx(best, abs=1e-4)
    greedy = list(prefix)
    for token in beam(1, 5).token_ids:
        greedy.append(int(library_logprobs(model, greedy)[-1].argmax()))
        assert greedy[-1] == token


def test_the_final_answer_line_ends_a_response_wherever_the_rollout_went_on():
    class Lines(TinyStudent):
        def decode(self, ids):
            return "".join({2: "\n", 10: "#### 5", EOS: ""}.get(i, "x") for i in ids)

    policy = EngineTokens(Lines(tiny_engine()), 1.0, 3)
    assert policy.verdict((9, 2)) is None and policy.verdict((9, EOS)) == "ended"
    assert policy.verdict((9, 2, 10, 2)) == policy.verdict((10, EOS)) == "answer"
    assert policy.verdict((10,)) is None  # the line is still open: a digit may follow
    assert [step.text for step in policy.lines((9, 2, 10, 2), (0.0,) * 4)] == ["x\n", "#### 5\n"]


if __name__ == "__main__" and "--write-golden" in sys.argv:
    GOLDEN.write_text(json.dumps(golden(), indent=1) + "\n")
