"""AlphaZero's rows, losses and loop: what the tree says, and what the update does with it."""

import itertools
import math
from random import Random
from types import SimpleNamespace

import pytest
import torch
from support import tiny_llama
from tables import read_json

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_training
from alphazero_llm_trainer.config.train import OptimizerConfig
from alphazero_llm_trainer.learning.learner import Learner, RateSchedule
from alphazero_llm_trainer.learning.losses import cross_entropy
from alphazero_llm_trainer.learning.methods.alphazero import (
    OFF_PATH,
    AlphaZero,
    AlphaZeroRows,
    branch_rows,
    order_steps,
    state_outcomes,
    step_targets,
)
from alphazero_llm_trainer.learning.models import MemoryOptions
from alphazero_llm_trainer.learning.train_row import TrainRow
from alphazero_llm_trainer.tree.arena import REJECTED, ROOT, Tree
from alphazero_llm_trainer.tree.graded import GradedTree
from alphazero_llm_trainer.types import Cost, Problem, RewardParts, Step, Task

PROMPT = (40, 41)


def a_tree():
    """root -> a -> b -> end (right); a -> c (open); root -> d (open) -> e (rejected)."""
    tree = Tree()

    def add(parent, token, visits=1, probability=0.25):
        node = tree.attach(parent, Step((token, token), (math.log(probability), 0.0), f"{token}"))
        for _ in range(visits):
            tree.backup(node, 0.5)
        return node

    a, d = add(ROOT, 10, 3), add(ROOT, 13)
    b, _, end, e = add(a, 11, 2), add(a, 12), 0, add(d, 15)
    end = add(b, 14)
    tree.finish(end, "answer", RewardParts(total=1.0, hre=1.0))
    tree.finish(e, REJECTED, RewardParts(total=0.0))
    return tree


def test_a_state_is_worth_the_discount_to_the_nearest_right_end():
    tree = a_tree()
    a, d, b, c, end = 1, 2, 3, 4, 6
    found = state_outcomes(tree, 0.5)
    assert found == {ROOT: 0.125, a: 0.25, d: 0.0, b: 0.5, c: 0.0, end: 1.0}
    # A shorter way to a right end counts for the states before it.
    short = tree.attach(a, Step((9,), (0.0,), "short"))
    tree.finish(short, "ended", RewardParts(total=1.0, hre=1.0))
    assert state_outcomes(tree, 0.5) == {**found, ROOT: 0.25, a: 0.5, short: 1.0}


def test_a_value_is_held_against_siblings_and_not_against_depth():
    tree = a_tree()
    z = state_outcomes(tree, 0.5)
    order = {"by z": [1.0, 1.0], "by depth": [0.5, 0.5], "wrong": [0.0, 1.0]}
    a, d, b, c = 1, 2, 3, 4
    for name, values in {
        "by z": {ROOT: 0.3, a: 0.4, d: 0.1, b: 0.6, c: 0.2},
        "by depth": {ROOT: 0.1, a: 0.2, d: 0.2, b: 0.5, c: 0.5},
        "wrong": {ROOT: 0.9, a: 0.2, d: 0.3, b: 0.5, c: 0.4},
    }.items():
        for node, value in values.items():
            tree.V[node] = value
        assert order_steps(tree, z) == order[name]
    tree.V[c] = None  # the search never asked
    assert order_steps(tree, z) == [0.0]
    tree.V[tree.attach(ROOT, Step((9,), (0.0,), "as bad as d"))] = 0.5
    assert order_steps(tree, state_outcomes(tree, 0.5)) == [0.0, 0.0]


def test_pi_is_the_way_or_the_searchs_shares_along_it():
    tree = a_tree()
    a, d, b, c, end = 1, 2, 3, 4, 6
    way = [a, b, end]
    assert step_targets(tree, way, "path") == {a: 1.0, b: 1.0, end: 1.0}
    visits = step_targets(tree, way, "visits")
    assert visits[a] == tree.N[a] / (tree.N[a] + tree.N[d])
    assert visits[b] == tree.N[b] / (tree.N[b] + tree.N[c]) and visits[end] == 1.0
    improved = step_targets(tree, way, "gumbel")
    assert improved.keys() == visits.keys()
    for siblings in ((a, d), (b, c), (end,)):
        for pi in (visits, improved):
            assert math.fsum(pi[node] for node in siblings) == pytest.approx(1.0)
    assert step_targets(tree, [], "path") == step_targets(tree, [], "visits") == {}


def test_each_step_and_each_state_is_in_one_row_and_rejected_steps_are_in_none():
    tree = a_tree()
    targets = state_outcomes(tree, 0.5)
    rows = branch_rows(
        tree, PROMPT, step_targets(tree, [1, 3, 6], "path"), targets, itertools.count()
    )
    way, *others = rows
    assert way.completion_ids == (10, 10, 11, 11, 14, 14, 41)
    assert way.pi == (*[1.0] * 6, 0.0)
    # The states before the tokens: the prompt, after a, b and the end; each as much as the others.
    assert way.targets == (0.125, 0.0, 0.25, 0.0, 0.5, 0.0, 1.0)
    assert way.value_weights == pytest.approx((0.25, 0.0, 0.25, 0.0, 0.25, 0.0, 0.25))
    # States off the way: a token that nothing learns from follows them.
    assert {row.completion_ids for row in others} == {(10, 10, 12, 12, 41), (13, 13, 41)}
    for row in others:
        assert row.pi == (0.0,) * len(row.completion_ids)
        assert row.value_weights == (*[0.0] * (len(row.completion_ids) - 1), 1.0)
        assert row.targets[-1] == 0.0
    assert [row.index for row in rows] == [0, 1, 2]


def test_a_trees_rows_are_its_shortest_right_way_and_states_that_lead_nowhere():
    tree = a_tree()
    short = tree.attach(1, Step((9, 8), (-9.0, 0.0), "short"))
    tree.finish(short, "ended", RewardParts(total=1.0, hre=1.0))
    for token in range(20, 20 + 2 * OFF_PATH):
        tree.attach(ROOT, Step((token,), (-1.0,), f"open {token}"))
    task = Task(Problem("p", "question", "numbers"), "1")
    config = load_training(overrides=["train.method=alphazero"])
    source = SimpleNamespace(demonstrations=[], size=None, config=config)
    student = SimpleNamespace(prompt_ids=lambda question: PROMPT)
    builder = AlphaZeroRows(source, student, SimpleNamespace(select_responses=list))
    [way] = builder.remember([GradedTree("0/p", task, tree, Cost(), "enough", False, 0, PROMPT)])
    assert way.completion_ids == (10, 10, 9, 8, 41) and way.pi == (1.0,) * 4 + (0.0,)
    lost = [
        z
        for row in builder.states
        for z, w in zip(row.targets, row.value_weights, strict=True)
        if w
    ]
    assert lost.count(0.0) == OFF_PATH and builder.own == [way]
    every, some = (builder.beside(Random(0), count) for count in (40, 5))
    assert sorted(map(id, every)) == sorted(map(id, builder.states)), "none comes twice"
    assert len({*map(id, some)}) == 5 and {*some} <= {*every}
    # On the longer way, whose states lead to a right end too, nothing of the policy is learnt.
    assert all(not any(row.pi) for row in builder.states)


@pytest.fixture
def model():
    return tiny_llama(3).requires_grad_(True)


def learner(model, **settings):
    """One with a value that says something."""
    train = load_training(overrides=["train.method=alphazero"]).train
    objective = AlphaZero(train.with_values(**settings), model)
    torch.manual_seed(0)
    torch.nn.init.normal_(objective.value.weight, std=0.3)
    optimizer = OptimizerConfig.model_validate({"max_grad_norm": 1e9, "learning_rate": 1e-3})
    return Learner(model, objective, MemoryOptions(), RateSchedule(1e-3, 0, 10), optimizer)


def loss_of(made, rows):
    """The loss of one part, whose gradients are there then."""
    made.compute(rows)
    return float(made.sums["loss"])


def test_the_loss_is_the_policys_likelihood_and_the_values_cross_entropy(model):
    """Against a loop over tokens and states under the model's own forward, gradients included."""
    made, tree = learner(model, value_coefficient=0.5), a_tree()
    visits = step_targets(tree, [1, 3, 6], "visits")
    rows = branch_rows(tree, PROMPT, visits, state_outcomes(tree, 0.5), itertools.count())
    loss, head = loss_of(made, rows), made.objective.value
    parameters = [*model.parameters(), head.weight]
    found = [parameter.grad.clone() for parameter in parameters]
    model.zero_grad()
    head.zero_grad()

    policy = value = torch.tensor(0.0)
    for row in rows:
        ids = torch.tensor([*row.prompt_ids, *row.completion_ids])[None]
        out = model(ids, output_hidden_states=True)
        logprobs = out.logits[0].log_softmax(-1)
        logits = head(out.hidden_states[-1][0])[:, 0]
        for at, token in enumerate(row.completion_ids):
            before = len(row.prompt_ids) + at - 1
            policy = policy - row.pi[at] * logprobs[before, token]
            z, p = row.targets[at], logits[before].sigmoid()
            entropy = -(z * p.log() + (1 - z) * (1 - p).log())
            value = value + row.value_weights[at] * entropy
    weights = sum(sum(row.pi) for row in rows)
    known = sum(sum(row.value_weights) for row in rows)
    expected = policy / weights + 0.5 * value / known
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    expected.backward()
    wanted = [parameter.grad for parameter in parameters]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert found[-1].any()


def test_the_value_reaches_the_layers_below_it(model):
    """Rows without a step to learn move the trunk all the same: one network has both."""
    made, nothing = learner(model), (0.0, 0.0)
    row = TrainRow(PROMPT, (5, 6), pi=nothing, targets=(1.0, 0.0), value_weights=(1.0, 0.0))
    before = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    loss_of(made, [row])
    made.clip()
    made.step()
    assert not torch.equal(before, model.model.layers[0].mlp.up_proj.weight)


def test_the_cross_entropy_of_soft_targets_by_hand():
    logits = torch.tensor([[0.3, -2.0, 0.0]])
    targets, weights = torch.tensor([[1.0, 0.25, 0.0]]), torch.tensor([[1.0, 2.0, 0.0]])
    p = [1 / (1 + math.exp(-0.3)), 1 / (1 + math.exp(2.0))]
    by_hand = -math.log(p[0]) - 2 * (0.25 * math.log(p[1]) + 0.75 * math.log(1 - p[1]))
    found = cross_entropy(logits, targets, weights, torch.tensor(4.0))
    assert float(found) == pytest.approx(by_hand / 4, abs=1e-6)


def test_a_game_that_is_not_won_is_wrong_and_no_cut_answer(tmp_path):
    """Most answers to a hard game have no answer: they are compared all the same."""
    start, out = tmp_path / "start", tmp_path / "eval"
    assert (
        main(
            f"""
        sft --model small --source pancake --quiet --eval-size 1 --set train.sft_steps=1
        --set train.demonstrations=16 --set train.validation_size=0 --out {start}
    """.split()
        )
        == 0
    )
    assert (
        main(
            f"""
        eval --model {start} --set student=small --source pancake -n 4 --quiet
        --methods greedy step-rejection --budget-tokens 100 --out {out}
    """.split()
        )
        == 0
    )
    results = read_json(out / "results.json")
    assert results["pairs"] and not any(row["cut"] for row in results["rows"])
    assert all(row["accuracy"][0] == 0.0 for row in results["rows"])
