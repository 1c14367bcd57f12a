"""The methods at work with the shipped student: budgets hold, seeds decide, tools repair."""

import asyncio
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import Lines, ScriptedPolicy, run
from support import SHAPE
from tables import table
from transformers import LlamaConfig, LlamaForCausalLM

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.protocol import Judgement
from alphazero_llm_trainer.eval import greedy as plain
from alphazero_llm_trainer.eval import methods
from alphazero_llm_trainer.eval.attempt import (
    Attempt,
    Chain,
    MethodContext,
    OverBudgetError,
    chain_of,
)
from alphazero_llm_trainer.eval.cells import Benchmark, run_cell
from alphazero_llm_trainer.eval.methods import ANSWERING, run_method
from alphazero_llm_trainer.eval.named_verifiers import LogProbability, NoVerifier, Product
from alphazero_llm_trainer.grading.answers import extract
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.policy.critic import Critic, CriticVerifier
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.types import Problem, Step, Task, ids_of

TASKS = load_tasks("embedded", "test", 40)


@pytest.fixture(scope="module")
def network(student):
    """A random value network with an engine of its own: every token that it reads costs."""
    return random_value(student, 0.2)


def random_value(student, bias):
    torch.manual_seed(5)
    sizes = {"vocab_size": student.model.config.vocab_size, "max_position_embeddings": 1024}
    model = LlamaForCausalLM(LlamaConfig(**{**SHAPE, **sizes}))
    own = {"eos_id": student.engine.eos_id, "step_ends": student.engine.step_ends}
    engine = InProcessEngine(model.eval(), settings=EngineConfig(max_context=1024), **own)
    engine.set_value(torch.randn(32) * 0.3, bias)
    return CriticVerifier(Critic(engine, 0.0, {}), "value")


@pytest.fixture(scope="module")
def prm(student, network):
    """A process reward model over the same random network."""
    return CriticVerifier(network.critic, "prm")


def verifier_of(name, network, prm):
    return {
        "prm": prm,
        "none": NoVerifier(),
        "log-probability": LogProbability(),
        "calculator": Calculator(),
        "product": Product([Calculator(), LogProbability()]),
        "value": network,
    }[name]


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    method=st.sampled_from(sorted(ANSWERING)),
    verifier=st.sampled_from(["none", "log-probability", "calculator", "product", "value", "prm"]),
    budget=st.integers(1, 400),
    index=st.integers(0, len(TASKS) - 1),
    seed=st.integers(0, 3),
)
def test_no_method_ever_spends_more_than_its_budget(
    student,
    config,
    network,
    prm,
    method,
    verifier,
    budget,
    index,
    seed,
):
    """`run_method` raises when its books say so; here the engines' own counters agree with the
    books.
    """
    judge = verifier_of(verifier, network, prm)
    sampler = MethodContext(student, judge, config)
    student.engine.tree.clear()
    network.critic.engine.tree.clear()
    sampled, scored = student.engine.cost.sampled_tokens, judge.scored_tokens
    found = asyncio.run(run_method(method, sampler, TASKS[index].problem, seed, budget))
    assert found.cost.sampled_tokens == student.engine.cost.sampled_tokens - sampled
    # An engine that scores log-probabilities computes a prefix's last token again; the books count
    # each token once.
    assert (
        found.cost.scored_tokens + (found.cost.calls if verifier == "prm" else 0)
        >= judge.scored_tokens - scored
    )
    assert 0 < found.tokens <= budget
    if not judge.computes:
        assert found.cost.scored_tokens == 0
    if found.response is not None:
        assert extract(found.response) is not None


def test_over_budget_is_an_error(student, config, monkeypatch):
    async def spendthrift(attempt):
        attempt.cost.sampled_tokens += attempt.budget + 1
        return "#### 1", "finished"

    monkeypatch.setitem(ANSWERING, "greedy", spendthrift)
    context = MethodContext(student, NoVerifier(), config)
    with pytest.raises(OverBudgetError):
        run(lambda: run_method("greedy", context, TASKS[0].problem, 0, 50))


def test_greedy_is_the_package_s_greedy(student):
    config = load_config(overrides=["student=embedded", "search.verify.first_temperature=1"])
    sampler = MethodContext(student, NoVerifier(), config)
    expected = plain.answer_tasks(student, TASKS, max_tokens=config.search.max_tokens)
    for task, [text] in zip(TASKS, expected.responses, strict=True):
        assert asyncio.run(run_method("greedy", sampler, task.problem, 0, 400)).response == text


class Judge:
    """A verifier that rejects every step after the first `depth`, and accepts nothing."""

    name, checks, guides, computes = "scripted", True, False, False

    def __init__(self, depth, total):
        self.depth, self.total = depth, total

    async def __call__(self, problem, prompt_ids, steps):
        return Judgement(tuple(float(at < self.depth) for at in range(len(steps))), self.total)


class Watched(ScriptedPolicy):
    """A scripted policy of twenty steps, which notes how deep it is asked, and what it drew and was
    to leave out after the same steps.
    """

    def __init__(self, close):
        super().__init__(5, words=20, close=close)
        self.depths = Counter()
        self.drawn = {}
        self.left_out = []

    async def continuations(self, problem, steps, n, seed, limits, *more, **named):
        without = more[1] if len(more) > 1 else named.get("without")
        found, cost = await super().continuations(problem, steps, n, seed, limits)
        before = self.drawn.setdefault((ids_of(steps), limits.steps == 1), set())
        self.left_out.append((without, {ids for ids, _ in without or ()}, set(before)))
        before.add(found[0].drawn[0])
        self.depths[len(steps)] += 1
        return found, cost


def sampler_of(student, verifier, policy, *changes):
    """What a method draws from: `policy`, with changes to the embedded student's configuration."""
    changed = load_config(overrides=["student=embedded", *changes])
    sampler = MethodContext(student, verifier, changed)
    sampler.policy = policy
    return sampler


@pytest.mark.parametrize(
    "method", ["majority", "best-of-n", "adaptive-best-of-n", "step-rejection", "beam", "mcts"]
)
@pytest.mark.parametrize("repeat", [False, True])
def test_what_was_drawn_after_the_same_steps_is_left_out(student, method, repeat):
    """But where votes count, and with `search.verify.repeat`."""
    changes = ["search.verify.accept_above=1", f"search.verify.repeat={str(repeat).lower()}"]
    policy = Watched(0.3)
    sampler = sampler_of(student, Judge(99, 0.5), policy, *changes)
    run(lambda: run_method(method, sampler, TASKS[0].problem, 3, 2000))
    # The last chain of `mcts` is drawn as it comes.
    asked = policy.left_out[:-1]
    assert len(asked) > 5 and any(before for *_, before in asked)
    if repeat or method == "majority":
        assert all(without is None for without, *_ in asked)
    else:
        assert all(left_out == before for _, left_out, before in asked)


def test_step_rejection_goes_back_as_far_as_all_is_dead(student):
    """Each step has `patience` successors, and is given up after them: the draws of a tree of that
    width.
    """
    policy = Watched(0.0)
    changes = ["search.verify.patience=2", "search.max_depth=9"]
    sampler = sampler_of(student, Judge(2, 0.0), policy, *changes)
    run(lambda: run_method("step-rejection", sampler, TASKS[0].problem, 3, 60_000))
    first, second, third = (policy.depths[depth] for depth in range(3))
    assert first > 3 and abs(second - 2 * first) <= 2 and abs(third - 2 * second) <= 6


def test_step_rejection_begins_anew_where_a_response_is_as_deep_as_one_may_be(
    student,
):
    """A depth limit is an end and no broken rule: the steps before it aren't given up one by
    one."""
    policy = Watched(0.0)
    sampler = sampler_of(student, Judge(99, 1.0), policy, "search.max_depth=5")
    run(lambda: run_method("step-rejection", sampler, TASKS[0].problem, 3, 1200))
    assert policy.depths[0] > 10
    assert all(policy.depths[depth] <= policy.depths[0] for depth in range(5))


def test_a_tree_votes_by_what_its_source_reads(student):
    """As majority does: "Paris" and "The Paris" are one answer of HotpotQA."""
    changes = ["search.verify.accept_above=0.5", "search.select=restart"]
    policy = Lines(("#### Lyon",), ("#### Paris",), ("#### The Paris",))
    sampler = sampler_of(student, Judge(99, 0.01), policy, *changes)
    problem = Problem("capital", "Which city?", "hotpotqa")
    found = run(lambda: run_method("mcts", sampler, problem, 0, 36))
    assert found.response in ("#### Paris", "#### The Paris")


@pytest.mark.parametrize("texts, ended, usable, states", table("search")["responses"])
def test_a_response_that_a_limit_cut_is_no_answer(student, config, texts, ended, usable, states):
    attempt = Attempt(MethodContext(student, NoVerifier(), config), TASKS[0].problem, 0, 100)
    steps = tuple(Step((1,), (0.0,), text) for text in texts)
    chain = chain_of(steps, ended, not ended and not texts[-1].endswith("\n"))
    assert (attempt.usable(chain), attempt.states(chain)) == (usable, states)
    assert chain.whole == ended


def test_a_prompt_that_does_not_fit_is_reported(student, config):
    problem = Problem("long", "apples " * 2000, "test")
    for method in ANSWERING:
        found = asyncio.run(
            run_method(method, MethodContext(student, Calculator(), config), problem, 0, 100)
        )
        assert (found.response, found.ended_by, found.tokens) == (None, "too long", 0)


@pytest.mark.parametrize("method", sorted(ANSWERING))
def test_a_response_that_never_ends_its_first_line_is_no_answer(student, method):
    sampler = MethodContext(
        student, Calculator(), load_config(overrides=["student=embedded", "search.max_tokens=3"])
    )
    found = asyncio.run(run_method(method, sampler, TASKS[0].problem, 0, 60))
    assert found.response is None and 0 < found.tokens <= 60


def test_votes_are_counted_by_answer(student, config):
    attempt = Attempt(MethodContext(student, NoVerifier(), config), TASKS[0].problem, 0, 100)

    def chain(text):
        return Chain((Step((1,), (0.0,), text),), whole=True)

    chains = [
        chain(text)
        for text in ("none", "nor here", "a\n#### 3", "b\n#### 4", "c\n#### 4.0", "d\n#### 3")
    ]
    assert methods.vote_response(attempt, chains) == "a\n#### 3"  # the first on ties
    assert methods.vote_response(attempt, chains[:2]) == "none"
    assert methods.vote_response(attempt, []) is None


def test_a_tight_budget_still_gets_an_answer_where_greedy_fits(student, config):
    """What methods keep back finishes a response: they don't end with nothing."""
    sampler = MethodContext(student, Calculator(), config)
    for method in ("step-rejection", "adaptive-best-of-n", "best-of-n"):
        found = [asyncio.run(run_method(method, sampler, task.problem, 0, 80)) for task in TASKS]
        assert sum(one.response is not None for one in found) == len(TASKS)


# -- what the verifier could not check -------------------------------------------------------------

BARE, WORKED = ("#### 25",), ("5 * 5 = 25\n", "#### 25")


def scripted(student, config, *responses):
    sampler = MethodContext(student, Calculator(), config)
    sampler.policy = Lines(*responses)
    return sampler


JUDGING = ("best-of-n", "adaptive-best-of-n", "step-rejection", "beam", "mcts")
SQUARE = Task(Problem("gsm8k/test/0", "What is 5 * 5?", "gsm8k"), "25")


@pytest.mark.parametrize("method", JUDGING)
def test_a_bare_answer_is_not_accepted_and_stays_a_candidate(student, config, method):
    found = run(lambda: run_method(method, scripted(student, config, BARE), SQUARE.problem, 0, 200))
    assert found.response == "#### 25" and found.unjudged and found.ended_by != "accepted"
    worked = run(
        lambda: run_method(method, scripted(student, config, BARE, WORKED), SQUARE.problem, 0, 200)
    )
    assert worked.response == "5 * 5 = 25\n#### 25" and not worked.unjudged
    if method not in ("best-of-n", "beam"):  # these end when they have done what they do
        assert worked.ended_by == "accepted"


def test_eval_counts_the_answers_that_were_unjudged(student, config):
    for method, response, unjudged in (("mcts", BARE, 1), ("greedy", BARE, 0), ("mcts", WORKED, 0)):
        sampler = scripted(student, config, response)
        cell = run_cell(sampler, Benchmark("gsm8k", [SQUARE]), method, 100, Progress(quiet=True))
        assert asyncio.run(cell).unjudged == unjudged
