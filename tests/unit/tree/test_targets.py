"""Training targets out of trees: closed forms on small trees, and against counting responses one by
one.
"""

import json

import pytest
from scripted import ScriptedPolicy, search

from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.tree.arena import ROOT, Rollout, Tree
from alphazero_llm_trainer.tree.extract import (
    graded,
    outcomes,
    prefixes,
    step_preferences,
    trajectories,
    value_targets,
)
from alphazero_llm_trainer.types import (
    Cost,
    Observation,
    RewardParts,
    Step,
    drawn_logprobs,
    drawn_mask,
    logprobs_of,
)


def grow(tree, parent, *ids):
    return tree.attach(parent, Step(ids, tuple(-0.5 for _ in ids), " ".join(map(str, ids)) + "\n"))


def end(tree, node, hre, visits, samples=1, reward=0.25):
    tree.finish(node, "answer", RewardParts(reward, hre))
    tree.samples[node] = samples
    for _ in range(visits):
        tree.backup(node, reward)


def step_tree():
    """root -> a(10 11) -> a1(20, right, 3 visits), a2(21, wrong, 1); root -> b(10 12) -> b1(20,
    wrong, 4).
    """
    tree = Tree()
    a, b = grow(tree, ROOT, 10, 11), grow(tree, ROOT, 10, 12)
    a1, a2, b1 = grow(tree, a, 20), grow(tree, a, 21), grow(tree, b, 20)
    end(tree, a1, 1.0, 3, samples=2)
    end(tree, a2, 0.0, 1)
    end(tree, b1, 0.0, 4)
    tree.expanded[ROOT] = tree.expanded[a] = True
    return tree


def token_tree():
    """root -> 5, 6 (unvisited); rollouts from 5 (7 8 right twice, nothing wrong once) and from the
    root (6 9 right).
    """
    tree = Tree()
    five, _ = grow(tree, ROOT, 5), grow(tree, ROOT, 6)
    tree.rollouts = [
        Rollout(five, (7, 8), (-1.0, -1.0), "7 8", "answer", 0.9, 1.0, None, 2),
        Rollout(five, (), (), "", "answer", 0.1, 0.0, None, 1),
        Rollout(ROOT, (6, 9), (-1.0, -1.0), "6 9", "answer", 0.9, 1.0, None, 1),
    ]
    for _ in range(3):
        tree.backup(five, 0.5)
    tree.expanded[ROOT] = True
    return tree


def test_outcomes_count_the_responses_through_each_node():
    counts, sums = outcomes(step_tree())
    assert counts == [8, 4, 4, 3, 1, 4]
    assert sums == [3.0, 3.0, 0.0, 3.0, 0.0, 0.0]


def test_every_token_has_the_mean_outcome_of_the_responses_that_begin_so():
    [shared] = [t for t in value_targets(step_tree(), every_token=True) if t.token_ids == (10,)]
    # Both siblings begin with it: one state, in the first one's node.
    assert (shared.node, shared.target, shared.weight) == (1, 3 / 8, 8)
    rolled = {
        t.token_ids: (t.node, t.target, t.weight)
        for t in value_targets(token_tree(), every_token=True)
    }
    assert rolled == {
        (): (0, 0.75, 4), (5,): (1, 2 / 3, 3), (5, 7): (1, 1.0, 2), (5, 7, 8): (1, 1.0, 2),
        (6,): (0, 1.0, 1), (6, 9): (0, 1.0, 1),
    }  # fmt: skip


def test_targets_of_a_searched_tree_agree_with_counting_its_endings():
    policy = ScriptedPolicy(3)
    tree = search(policy, seed=5, simulations=25, samples=4, max_depth=6).tree
    paths = prefixes(tree)
    whole = [(paths[node] + rest, count, outcome) for node, rest, count, outcome in graded(tree)]
    for target in value_targets(tree):
        # The oracle's reward is the outcome here.
        assert target.target == pytest.approx(tree.q(target.node))
        assert target.weight == tree.N[target.node]
    for target in value_targets(tree, every_token=True):
        length = len(target.token_ids)
        through = [(c, o) for ids, c, o in whole if ids[:length] == target.token_ids]
        assert target.weight == sum(c for c, _ in through)
        assert target.target == pytest.approx(sum(c * o for c, o in through) / target.weight)


def test_step_preferences_order_siblings_by_their_outcomes():
    [pair] = step_preferences(step_tree(), margin=0.5)
    assert (pair.prefix_ids, pair.chosen_ids, pair.rejected_ids) == ((), (10, 11), (10, 12))
    assert (pair.margin, pair.count) == (0.75, 4)
    both = step_preferences(step_tree(), margin=0.5, least=1)
    assert [(p.prefix_ids, p.chosen_ids, p.rejected_ids, p.margin, p.count) for p in both[1:]] == [
        ((10, 11), (20,), (21,), 1.0, 1)
    ]
    assert step_preferences(step_tree(), margin=0.8) == []


def test_a_rollout_and_a_terminal_node_may_be_one_response():
    [row] = [one for one in trajectories(step_tree()) if one.right]
    assert (row.token_ids, row.text, row.samples) == ((10, 11, 20), "10 11\n20\n", 2)
    tree = token_tree()
    tree.rollouts.append(
        Rollout(ROOT, (5, 7, 8), (-1.0,) * 3, "5\n7 8", "answer", 0.9, 1.0, None, 4, samples=3)
    )
    # Samples count, visits don't: a greedy rollout that is read again drew nothing.
    assert [(r.token_ids, r.samples) for r in trajectories(tree) if r.right] == [
        ((5, 7, 8), 4),
        ((6, 9), 1),
    ]


def take_turn(tree, parent, text, answer, drawn, given, **said):
    """A node of a turn whose world gave tokens."""
    logprobs = (-0.5,) * len(drawn) + (0.0,) * len(given)
    seen = Observation(len(given), answer, **said)
    return tree.attach(parent, Step((*drawn, *given), logprobs, text, seen))


def turn_tree():
    """root -> "3 + 4"(10 11, given 90 91) -> "7"(12); and "9"(13, given 91)."""
    tree = Tree()
    turn = take_turn(tree, ROOT, "3 + 4", "7", (10, 11), (90, 91), calls=("calculate",))
    last = tree.attach(turn, Step((12,), (-0.25,), "7"))
    other = take_turn(tree, ROOT, "9", "error", (13,), (91,), calls=("x",), errors=("x",))
    end(tree, last, 1.0, 2)
    end(tree, other, 0.0, 1)
    return tree


def test_given_tokens_are_told_from_drawn_ones():
    tree = turn_tree()
    first, second = trajectories(tree)
    assert [first.token_ids, second.token_ids] == [(13, 91), (10, 11, 90, 91, 12)][::-1]
    masks = {one.token_ids: one.mask for one in (first, second)}
    assert masks == {
        (10, 11, 90, 91, 12): (True, True, False, False, True),
        (13, 91): (True, False),
    }
    steps = tree.steps(2)
    assert drawn_mask(steps) == masks[10, 11, 90, 91, 12] and steps[0].drawn == 2
    assert drawn_logprobs(steps) == (-0.5, -0.5, -0.25)
    assert logprobs_of(steps) == (-0.5, -0.5, 0.0, 0.0, -0.25)
    assert trajectories(step_tree())[0].mask == ()
    # The same turn is one node, whatever its tokens' log-probabilities are.
    assert take_turn(tree, ROOT, "3 + 4", "7", (10, 11), (90, 91)) == 1
    assert Tree.from_dict(tree.to_dict()).ahead().steps(2) == steps


def test_no_value_is_inside_of_what_a_world_gave():
    states = [one.token_ids for one in value_targets(turn_tree(), every_token=True)]
    assert sorted(states) == [
        (),
        (10,),
        (10, 11),
        (10, 11, 90, 91),
        (10, 11, 90, 91, 12),
        (13,),
        (13, 91),
    ]


def test_a_tree_of_turns_has_format_3_and_one_without_the_format_2():
    saved = json.loads(json.dumps(turn_tree().to_dict()))
    assert saved["format"] == 3 and Tree.from_dict(saved).to_dict() == turn_tree().to_dict()
    assert saved["seen"][1] == [2, "7", ["calculate"], []] and saved["seen"][2] is None
    plain = json.loads(json.dumps(step_tree().to_dict()))
    assert plain["format"] == 2 and "seen" not in plain
    assert Tree.from_dict(plain).to_dict() == step_tree().to_dict()
    for broken in ([5, "7", [], []], [-1, "7", [], []], ["2", "7", [], []], [2, "7"]):
        saved["seen"][1] = broken
        with pytest.raises(DataError, match="can't be read"):
            Tree.from_dict(saved)


def test_what_worlds_give_is_counted_apart():
    cost = Cost(sampled_tokens=5, scored_tokens=2)
    assert cost.computed == 7 and "given_tokens" not in cost.as_dict()
    cost.add(Cost(given_tokens=4, turns=2, tool_calls=1))
    assert cost.computed == 11 and Cost(**cost.as_dict()) == cost
    assert (cost.sampled_tokens, cost.given_tokens) == (5, 4)
