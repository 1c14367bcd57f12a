"""Every token that a model computes for an answer is in its cost, and sampled and scored ones stay
within the budget.
"""

import asyncio
from itertools import product

import pytest
from scripted import (
    ScriptedAdvisor,
    ScriptedPolicy,
    ScriptedTokens,
    run,
    scripted_evaluate,
    search,
)

from alphazero_llm_trainer.answering.searches import answer_search
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import TeacherProposal
from alphazero_llm_trainer.learning.collector import Collector
from alphazero_llm_trainer.learning.methods.by_name import method_of
from alphazero_llm_trainer.mcts.metered import ReadTokens
from alphazero_llm_trainer.policy.student import frozen_student, load_student
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.rewards.perplexity import Perplexity
from alphazero_llm_trainer.tree.arena import ROOT
from alphazero_llm_trainer.tree.extract import trajectories
from alphazero_llm_trainer.types import Cost, Direction, Step

MODES = ["search.mode=step", "search.mode=token"]


def loaded(*overrides):
    config = load_config(overrides=["student=embedded", *overrides])
    return config, load_student(config)


class Network:
    """FAKE value network of its own: V by the tokens' sum; `reads` keeps the states that it was
    asked about.
    """

    rollout_weight, computes = 0.5, True

    def __init__(self):
        self.reads = []

    async def __call__(self, token_ids):
        self.reads.append(token_ids)
        return sum(token_ids) % 17 / 16


def distinct(sequences):
    """Tokens of a trie of these sequences."""
    return len({ids[:i] for ids in sequences for i in range(1, len(ids) + 1)})


# -- answering -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_with_pre_keeps_to_its_budget_and_scores_nothing(mode):
    config, student = loaded(mode)
    used = []
    for i, task in enumerate(load_tasks("embedded", "test", 12)):
        budget = (20, 60, 200)[i % 3]
        limited = config.with_values(search={"budget_tokens": budget, "simulations": 400})
        before = student.engine.cost.sampled_tokens
        one = answer_search(
            student,
            limited,
            Perplexity(student, config.search.max_tokens, own=True),
        )
        result = run(lambda one=one, task=task, i=i: one.run(task.problem, i))
        assert result.cost.sampled_tokens + result.cost.scored_tokens <= budget
        # A token-level search reads several visits off one rollout: what the engine drew is at most
        # what is charged.
        assert 0 < student.engine.cost.sampled_tokens - before <= result.cost.sampled_tokens
        assert result.cost.scored_tokens == student.engine.cost.scored_tokens == 0
        used.append(result.cost.sampled_tokens / budget)
    assert max(used) > 0.8


def test_what_a_response_was_sampled_with_is_its_perplexity():
    config, student = loaded("search.simulations=3")
    seen = set()

    async def main():
        own, scored = (
            Perplexity(student, config.search.max_tokens, own=own) for own in (True, False)
        )
        for task in load_tasks("embedded", "test", 6):
            tree = (await answer_search(student, config, own).run(task.problem, 5)).tree
            for leaf in tree.leaves():
                steps = tree.steps(leaf)
                mine, free = await own(task.problem, steps)
                theirs, _ = await scored(task.problem, steps)
                assert mine == pytest.approx(theirs, abs=1e-4)
                assert mine == pytest.approx(tree.pre[leaf], abs=1e-4) and not free.scored_tokens
                seen.add(round(mine, 3))
            # Text without log-probabilities is scored by either.
            cut = Step(steps[0].token_ids, (), steps[0].text)
            assert (await own(task.problem, [cut]))[1].scored_tokens == len(cut.token_ids)

    asyncio.run(main())
    assert len(seen) >= 5


def test_a_questions_baseline_is_paid_for_once_and_cut_at_half_of_the_budget():
    config, student = loaded()
    [task] = load_tasks("embedded", "test", 1)

    async def main():
        measure = Perplexity(student, config.search.max_tokens, own=True)
        whole = await measure.open(task.problem, None)
        again = await measure.open(task.problem, None)
        measure.forget(task.problem)
        return whole, again, await measure.open(task.problem, 5)

    whole, again, cut = asyncio.run(main())
    assert whole.sampled_tokens > 5 and again == Cost() and cut.sampled_tokens == 5
    assert whole.prompt_tokens + whole.cached_tokens == len(
        student.prompt_ids(task.problem.question)
    )


STEP = TeacherProposal("a teacher's step", "teacher:t", Direction.RIGHT)


@pytest.mark.parametrize("rollout", ["sample", "greedy", "none"])
@pytest.mark.parametrize("kind", ["step", "taught", "token", "token, from a prefix"])
def test_a_value_network_reads_within_the_budget_and_each_token_once(kind, rollout):
    mode, prefix = kind[:5].replace("taugh", "step"), kind.endswith("prefix")
    advisor = ScriptedAdvisor([STEP] * 2) if kind == "taught" else None
    for seed, budget, judges in product(range(4), (3, 30, 90, 400), (False, True)):
        network = Network()
        policy = ScriptedTokens(seed, close=0.05) if mode == "token" else ScriptedPolicy(seed)
        result = search(
            policy, seed=seed, evaluate=None if judges else scripted_evaluate, value=network,
            mode=mode, advisor=advisor, generating=prefix, simulations=40, samples=2, top_k=3,
            max_tokens=25, budget_tokens=budget, rollout=rollout,
        )  # fmt: skip
        cost = result.cost
        assert cost.sampled_tokens <= budget and not any(result.tree.virtual)
        if not advisor:  # whose steps are scored too
            assert cost.sampled_tokens + cost.scored_tokens <= budget
            assert cost.scored_tokens == distinct(network.reads)
        if budget == 400:
            assert network.reads and cost.sampled_tokens > 0


def test_a_reader_reads_each_token_once():
    reader = ReadTokens()
    assert [reader.read(ids) for ids in [(1, 2, 3), (1, 2, 4, 5), (2, 3), (1, 2)]] == [3, 2, 2, 0]
    assert [reader.count_unread(ids) for ids in [(1, 2, 4, 6), (1, 2, 4, 6), ()]] == [1, 1, 0]


# -- training --------------------------------------------------------------------------------------


async def collected(collector, tasks):
    return [
        tree async for tree in collector.collect([(task.problem.id, task) for task in tasks], 7)
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("budget", ["null", "150"])
def test_a_training_tree_pays_for_its_perplexity(mode, budget):
    config, student = loaded(mode, f"search.budget_tokens={budget}", "search.simulations=12")
    frozen = frozen_student(student, config, shared=False)
    perplexity = Perplexity(frozen, config.search.max_tokens)
    collector = Collector(student, config, method_of(config.train.method), perplexity)
    trees = asyncio.run(collected(collector, load_tasks("embedded", "train", 10, start=1000)))
    for tree in trees:
        assert tree.tree.N[ROOT] > 0
        if budget != "null":
            assert tree.cost.sampled_tokens + tree.cost.scored_tokens <= int(budget)
        # Each token of the tree's responses was scored once.
        assert tree.cost.scored_tokens == distinct([t.token_ids for t in trajectories(tree.tree)])
    assert not collector.perplexity._known
    # What the frozen student drew are the baselines: they are in the trees' cost too.
    spent = student.engine.cost.sampled_tokens + frozen.engine.cost.sampled_tokens
    assert frozen.engine.cost.sampled_tokens > 0
    if mode.endswith("step"):
        assert sum(tree.cost.sampled_tokens for tree in trees) == spent
