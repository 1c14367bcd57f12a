"""Search under a verifier: rejected steps are cut, repaired at once, and paid for."""

import asyncio
import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
import scripted
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Lines, Rule, ScriptedPolicy, hashed_reward
from tables import TESTS, read_json

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import SearchConfig
from alphazero_llm_trainer.engine.protocol import Judgement
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.eval.named_verifiers import Product
from alphazero_llm_trainer.learning.rows import GoodRows
from alphazero_llm_trainer.mcts.choose import choose
from alphazero_llm_trainer.mcts.descent import Live, open_rule
from alphazero_llm_trainer.mcts.driver import Search
from alphazero_llm_trainer.mcts.mcts import LeafEvaluation, Mcts, Playout
from alphazero_llm_trainer.mcts.metered import MeteredVerifier
from alphazero_llm_trainer.mcts.select import SELECTORS, open_puct
from alphazero_llm_trainer.problems.step_checks import Calculator
from alphazero_llm_trainer.rewards.terminal import make_evaluate
from alphazero_llm_trainer.tree.arena import REJECTED, ROOT, Tree
from alphazero_llm_trainer.tree.graded import GradedTree
from alphazero_llm_trainer.types import Continuation, Cost, Problem, RewardParts, Step, Task

PROBLEM = Problem("p", "question", "test")


class Ranker(Rule):
    """FAKE value: a function of a response's beginning, which checks no step. A test tool."""

    checks, guides = False, True

    async def __call__(self, problem, prompt_ids, steps):
        beginnings = itertools.accumulate(step.text for step in steps) if steps else [""]
        values = tuple(map(self.good, beginnings))
        return Judgement(values, values[-1], frozenset(range(len(steps))), values)


def step(text, probability=0.5):
    return Step(tuple(map(ord, text)), (math.log(probability), *[0.0] * (len(text) - 1)), text)


def search(verifier, seed=0, policy_seed=0, **changes):
    asked = {"simulations": 60, "verifier": verifier, "evaluate": scripted.unasked, **changes}
    return scripted.search(ScriptedPolicy(policy_seed), PROBLEM, seed, **asked)


# -- the rule --------------------------------------------------------------------------------------


def test_a_new_step_has_the_probability_that_the_drawn_ones_leave():
    tree = Tree()
    likely = tree.attach(ROOT, step("a", 0.9))
    tree.backup(likely, 0.5)
    # 0.5 + c*0.9*sqrt(1)/2 against 0.5 + c*0.1*sqrt(1)/2
    assert open_puct(tree, ROOT, 1.0, [likely]) == likely
    for _ in range(17):
        tree.backup(likely, 0.5)
    # N = 18: c*0.9*sqrt(18)/19 = 0.2010c against c*0.1*sqrt(18)/2 = 0.2121c
    assert open_puct(tree, ROOT, 1.0, [likely]) == ROOT


def test_long_steps_are_equals_of_the_one_that_is_not_drawn_yet():
    """A step of forty tokens has next to no probability: with that as its prior, no child would
    ever be visited again.
    """
    tree = Tree()
    first = tree.attach(ROOT, step("a", 1e-9))
    tree.backup(first, 1.0)
    # c*1/2 on both sides, equal means: what holds goes on
    assert open_puct(tree, ROOT, 2.0, [first]) == first
    tree.backup(first, 0.0)
    # N = 2, k = 1: c*sqrt(2)/3 against c*sqrt(2)/2, equal means
    assert open_puct(tree, ROOT, 2.0, [first]) == ROOT
    second = tree.attach(ROOT, step("b", 1e-9))
    tree.backup(second, 0.0)
    # N = 3, mean 1/3: the first has 0.5 + c*0.577, the second 0 + c*0.866,
    # a third step 0.333 + c*0.577.
    assert open_puct(tree, ROOT, 0.5, [first, second]) == first
    assert open_puct(tree, ROOT, 8.0, [first, second]) == second


def test_a_rejected_long_step_is_drawn_again_where_it_was_and_a_restart_begins_anew():
    for select, goes_on in (("puct", True), ("restart", False)):
        tree = Tree()
        mcts = Mcts(tree, open_rule(SELECTORS[select].open, 2.0, Live(tree, 4)), 100)
        [leaf] = mcts.ask()
        refuse(mcts, leaf, [step("a\n", 1e-9), step("b\n", 1e-9), step("bad\n", 1e-9)], before=1.0)
        [leaf] = mcts.ask()
        assert leaf.node == (2 if goes_on else ROOT)
    with pytest.raises(ConfigError, match=r"search\.select is restart"):
        evaluate = make_evaluate(load_config().rewards, None, None)
        Search(ScriptedPolicy(0), evaluate, SearchConfig.model_validate({"select": "restart"}))


def test_who_watches_a_tree_sees_each_step_as_it_is_drawn():
    tree, sizes = Tree(), []

    class Watched(Rule):
        async def __call__(self, problem, prompt_ids, steps):
            sizes.append((len(tree.ahead()), len(tree)))
            return await super().__call__(problem, prompt_ids, steps)

    rule = Watched(hashed_reward)
    scripted.search(ScriptedPolicy(0), PROBLEM, tree=tree, verifier=rule, simulations=9)
    assert any(ahead > now for ahead, now in sizes)
    assert tree.growing == {} and tree.ahead().to_dict() == tree.to_dict()


# -- repair ----------------------------------------------------------------------------------------


def refuse(mcts, leaf, steps, before=0.5):
    playout = Playout(Continuation(tuple(steps), False), REJECTED, RewardParts(total=0.0))
    mcts.tell(
        leaf, LeafEvaluation([playout], scores=[1.0] * (len(steps) - 1) + [0.0], estimate=before)
    )


def test_the_next_leaf_is_the_step_before_the_rejected_one_and_patience_goes_one_step_back():
    tree = Tree()
    live = Live(tree, 2)
    mcts = Mcts(tree, open_rule(open_puct, 0.0, live), 100)
    refused = ([step("a\n", 0.9), step("b\n", 0.9), step("bad\n", 0.1)], [step("worse\n", 0.1)])
    # b is drawn from twice in vain, then a.
    for node, steps in zip((ROOT, 2, 1), (*refused, [step("c\n", 0.1)]), strict=True):
        [leaf] = mcts.ask()
        assert leaf.node == node
        refuse(mcts, leaf, steps)
    assert (tree.verdict[3], tree.reward[3], tree.prm[3], tree.prm[1]) == (REJECTED, 0.0, 0.0, 1.0)
    assert tree.backups[:2] == [(3, 0.0, 2), (2, 0.5, -1)]  # what was good keeps what it earned
    # A search that goes on with a tree knows what was rejected.
    assert mcts.ask()[0].node == ROOT and live.dead == {1, 2} == Live(tree, 2).dead


def test_what_stands_before_a_rejected_step_is_worth_its_own_total_in_later_chains_too():
    """A rule's total is the least of its steps', so that no chain below a node earns more."""
    redrawn = 0
    for seed in range(20):
        tree = search(Rule(hashed_reward), seed, verify={"reject_below": 0.3}).tree
        for node in range(1, len(tree)):
            total = min(hashed_reward(one.text) for one in tree.steps(node))
            assert tree.q(node) <= total + 1e-12
            later = tree.children[node][1:]
            redrawn += any(tree.verdict[child] == REJECTED for child in later)
    assert redrawn > 5


# -- golden trees ----------------------------------------------------------------------------------

GOLDEN = TESTS / "golden" / "verified.json"


def golden():
    trees = []
    for select, tokens in itertools.product(("puct", "ucb1", "gumbel"), (25, 160)):
        verify = {"accept_above": 1.0, "reject_below": 0.3, "patience": 2}
        result = search(
            Rule(hashed_reward),
            5,
            5,
            select=select,
            simulations=20,
            max_tokens=tokens,
            verify=verify,
        )
        tree = result.tree.to_dict()
        keep = {name: tree[name] for name in ("parent", "text", "N", "prm", "verdict")}
        trees.append(
            {
                **keep,
                "W": [round(w, 9) for w in tree["W"]],
                "sampled_tokens": result.cost.sampled_tokens,
            }
        )
    return trees


def test_the_golden_trees():
    """Pinned. When a change is meant: `PYTHONPATH=tests python` this file, then read the
    difference.
    """
    pinned = read_json(GOLDEN)
    assert golden() == pinned
    assert {verdict for tree in pinned for verdict in tree["verdict"]} >= {
        REJECTED,
        "answer",
        "ended",
        "length",
    }


# -- whole searches --------------------------------------------------------------------------------


def test_no_step_below_a_rejected_one_and_the_chosen_response_has_none():
    bad, seen = Rule(lambda text: 0.0 if text.startswith("w2") else 0.9), 0
    for seed in range(20):
        result = search(bad, seed)
        tree = result.tree
        for node in range(1, len(tree)):
            rejected = tree.verdict[node] == REJECTED
            assert rejected == (tree.prm[node] == 0.0) == tree.text[node].startswith("w2")
            assert not (rejected and tree.children[node])
            seen += rejected
        if result.ended_by == "accepted":
            assert "w2" not in result.choice.response
    assert seen > 10


def test_the_first_response_that_passes_ends_the_search_and_a_higher_bar_goes_on():
    fine = Rule(lambda text: 0.6)
    early, late = search(fine, 3), search(fine, 3, verify={"accept_above": 0.7})
    assert early.ended_by == "accepted" and late.ended_by == "simulations"
    assert late.cost.sampled_tokens > early.cost.sampled_tokens
    # No step was drawn twice: how often an answer was found says nothing, and the vote goes by
    # probability.
    assert "probability-weighted vote" in late.choice.why
    asked = search(fine, 3, verify={"accept_above": 0.7}, choose="visits").choice
    assert "most visited path" in asked.why


def test_what_the_last_simulation_accepts_is_the_answer_too():
    doubtful = Rule(lambda text: 0.6 if text.startswith("w1") else 0.95)
    # The seventh simulation is the first that accepts, and a vote would name another response.
    last = search(doubtful, 78, 78, verify={"accept_above": 0.9}, simulations=7)
    assert last.ended_by == "accepted" and last.choice.value >= 0.9
    voted = choose(last.tree, "mass")
    assert voted.value < 0.9


def test_where_nothing_passes_one_unjudged_chain_still_answers():
    never = Rule(lambda text: 0.0)
    answered = 0
    for seed in range(20):
        result = search(never, seed, simulations=5)
        ends = [node for node in result.tree.leaves() if result.tree.verdict[node] != REJECTED]
        answered += result.choice is not None and result.choice.answer is not None
        assert all(result.tree.reward[node] == 0.0 for node in ends)
    assert answered > 5


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    budget=st.integers(1, 120),
    computes=st.booleans(),
    threshold=st.sampled_from((0.0, 0.5, 1.0)),
    width=st.sampled_from((1, 3)),
    kind=st.sampled_from((Rule, Ranker)),
)
def test_sampled_and_scored_tokens_never_exceed_the_budget(
    seed, budget, computes, threshold, width, kind
):
    verifier = kind(lambda text: 0.3 if "x" in text else 0.8, computes)
    result = search(
        verifier, seed, seed, budget_tokens=budget, width=width,
        verify={"reject_below": threshold, "accept_above": 0.9, "reserve": 10},
    )  # fmt: skip
    assert result.cost.sampled_tokens + result.cost.scored_tokens <= budget
    assert (result.cost.scored_tokens > 0) <= computes
    assert not any(result.tree.virtual)


def test_a_judge_counts_each_token_once_and_the_prompt_with_the_first_step():
    a, b, c = step("aa"), step("bbb"), step("c")
    for computes, expected in ((True, [12, 15, 15, 15, 16]), (False, [0] * 5)):
        rule = Rule(lambda text: 1.0, computes)
        judge = MeteredVerifier(rule, PROBLEM, tuple(range(200, 210)), Cost())
        for steps, cost in zip(([a], [a, b], [a, b], [a], [c]), expected, strict=True):
            price = judge.step_price(steps)
            before = judge.cost.scored_tokens
            asyncio.run(judge(steps))
            assert judge.cost.scored_tokens == before + price == cost


def test_token_search_takes_no_verifier():
    with pytest.raises(ConfigError, match=r"search\.mode is token"):
        search(Rule(lambda text: 1.0), mode="token")


# -- a value ---------------------------------------------------------------------------------------


def test_a_value_that_is_low_everywhere_rejects_and_accepts_nothing():
    answers = 0
    for seed in range(20):
        low = Ranker(lambda text: 0.01 + 0.4 * hashed_reward(text))
        chains = {"simulations": 8, "budget_tokens": 200, "rollout": "sample"}
        result = search(low, seed, **chains, verify={"reserve": 60})
        free = search(low, seed, **chains, verify={"reserve": 60, "reject_below": 0.0})
        tree = result.tree
        assert tree.to_dict() == free.tree.to_dict() and result.answer == free.answer
        assert REJECTED not in tree.verdict and result.ended_by != "accepted"
        answers += result.answer is not None
        # Every step has its V, and a finished response backs up that of its end.
        for node in range(1, len(tree)):
            assert tree.V[node] == low.good(tree.response(node)) and tree.prm[node] is None
            if tree.verdict[node] == "answer":
                assert tree.reward[node] == tree.V[node]
    assert answers == 20


VALUE = Ranker(lambda text: 0.01 + 0.4 * hashed_reward(text))
RULED = Product([Rule(lambda text: float(hashed_reward(text) > 0.3)), VALUE])


def test_beside_a_rule_a_step_has_its_v_and_a_cut_chain_backs_up_the_last_good_one_once():
    rejected = 0
    for seed in range(20):
        tree = search(RULED, seed, simulations=8, rollout="sample").tree
        assert tree.N[ROOT] == len(tree.simulations)  # a chain is one visit, however long it is
        for node in range(1, len(tree)):
            assert tree.V[node] == VALUE.good(tree.response(node))
            if tree.verdict[node] == REJECTED and tree.parent[node] != ROOT:
                rejected += 1
                assert tree.reward[node] == 0
            # Q is a mean of values: what stands before a rejected step is worth its V, not 1.
            assert tree.q(node) < 0.42 and tree.q(ROOT) < 0.42
    assert rejected > 10


def test_one_step_a_simulation_backs_up_its_v_once_and_a_rejected_one_changes_no_mean():
    seen = Counter()
    for seed in range(20):
        tree = search(RULED, seed, simulations=30, max_depth=3).tree
        known, before = 1, 0
        past = Tree()  # what the means were before each simulation
        past.parent, past.N, past.W = tree.parent, [0] * len(tree), [0.0] * len(tree)
        for leaf, nodes, backups in tree.simulations:
            made, before = tree.backups[before:backups], backups
            if known < nodes:  # else an end is visited again
                [node] = range(known, nodes)
                known, verdict = nodes, tree.verdict[node]
                seen[verdict if verdict in (None, REJECTED) else "end"] += 1
                assert tree.parent[node] == leaf
                if verdict == REJECTED:
                    assert made == [(node, 0.0, leaf), (leaf, past.q(leaf), -1)]
                else:
                    worth = tree.V[node] if verdict is None else tree.reward[node]
                    assert made == [(node, worth, -1)]
                if verdict == "depth":
                    assert tree.reward[node] == 0.0 and len(tree.path(node)) == 3
            for backup in made:
                past.backup(*backup)
        assert tree.N[ROOT] == len(tree.simulations)
    assert len(seen) == 3 and min(seen.values()) > 20


def test_what_is_kept_for_a_last_chain_is_spent_once_a_response_is_there():
    answered = 0
    for seed in range(20):
        asked = {"verify": {"reserve": 60}, "budget_tokens": 120, "max_tokens": 20}
        result = search(Ranker(lambda text: 0.3), seed, simulations=1000, **asked)
        assert result.ended_by == "tokens" and result.cost.sampled_tokens <= 120
        if any(result.tree.reward):
            assert result.cost.sampled_tokens > 100
            answered += 1
    assert answered > 10


# -- what the verifier could not check -------------------------------------------------------------

TASK = Task(Problem("gsm8k/train/0", "What is 5 * 5?", "gsm8k"), "25")


def trained_on(*responses, **asked):
    """A training search under the calculator of a student that says `responses`."""
    graded = make_evaluate(load_config().rewards, None, {TASK.problem.id: TASK})
    common = {"verifier": Calculator(), "generating": True, "enough_correct": 1}
    policy = Lines(*responses)
    return scripted.search(policy, TASK.problem, evaluate=graded, **common, **asked)


def test_in_training_a_tree_goes_on_after_a_right_answer_in_which_nothing_was_checked():
    """And the first response that is learnt from is one that the rule could judge."""

    def grown(*responses):
        return trained_on(*responses, simulations=12)

    bare, worked = ("#### 25",), ("It is a square.\n", "5 * 5 = 25\n", "#### 25")
    assert grown(bare).ended_by == "simulations"
    found = grown(bare, bare, bare, worked)
    assert found.ended_by == "enough" and found.tree.N[ROOT] == 4
    # The bare answer, and the worked one's lines.
    assert found.tree.prm[1:] == [None, None, 1.0, None]
    source = SimpleNamespace(collector=SimpleNamespace(select_responses=list), config=load_config())
    tree = GradedTree("0/0", TASK, found.tree, found.cost, found.ended_by, False, 0)
    right = [response.text for response in GoodRows.right(source, tree)]
    assert right == ["".join(worked), *bare]


def test_a_tree_can_end_at_its_first_finished_response_right_or_wrong():
    """Which is step rejection; the end of a chain at a rejected step finishes no response."""
    rejected = ("5 * 5 = 26\n",)
    wrong = ("5 + 5 = 10\n", "#### 10")
    right = ("5 * 5 = 25\n", "#### 25")

    def chains(simulations, finished):
        asked = {"simulations": simulations, "enough_finished": finished, "select": "restart"}
        result = trained_on(rejected, wrong, right, **asked)
        return result.ended_by, len(result.tree.simulations)

    assert chains(12, 0) == ("enough", 3)
    assert chains(12, 1) == ("enough", 2)
    assert chains(2, 1) == ("enough", 2)  # so that nothing searches this question again
    assert chains(1, 1) == ("simulations", 1)


if __name__ == "__main__":  # regenerates the golden trees
    GOLDEN.write_text(json.dumps(golden()) + "\n", encoding="utf-8")


class Shirker:
    """FAKE policy: each line is right, wrong, or can't be read, and then an answer. A test tool.

    `share` is how often a line that would be wrong can't be read instead.
    """

    def __init__(self, share):
        self.share = share

    def prompt_ids(self, problem):
        return (1, 2)

    def line(self, rng, count):
        if count == 2:
            return f"#### {rng.randrange(3)}"
        if rng.random() < 0.6:
            return f"{count} + {(extra := rng.randrange(9))} = {count + extra}\n"
        shirks = rng.random() < self.share
        return rng.choice(["9 * 2 =  = 8\n", "9 * 2 = now?\n"]) if shirks else "9 * 2 = 17\n"

    async def continuations(self, problem, steps, n, seed, limits, *more, **named):
        rng, lines = Random(f"{problem.id} {[s.text for s in steps]} {seed}"), []
        while len(lines) < limits.steps and len(steps) + len(lines) < 3:
            lines.append(self.line(rng, len(steps) + len(lines)))
        drawn = tuple(step(text) for text in lines)
        cost = Cost(sampled_tokens=sum(len(one.token_ids) for one in drawn), calls=1)
        return [Continuation(drawn, len(steps) + len(lines) == 3)], cost


def test_a_policy_that_writes_what_cannot_be_read_gains_nothing_by_it():
    """Of responses that are accepted each step was read, and no more are than of an honest one."""
    accepted = Counter()
    for share, at in itertools.product((0.0, 1.0), range(40)):
        found = Search(
            Shirker(share),
            None,
            load_config(overrides=["search.budget_tokens=120"]).search.with_values(
                simulations=1000
            ),
            verifier=Calculator(),
        )
        result = asyncio.run(found.run(Problem(f"p{at}", "q", "test"), at))
        if result.ended_by == "accepted":
            accepted[share] += 1
            assert "9 * 2" not in result.response and "none wrong" in result.choice.why
            assert "2 of 2 steps checked" in result.choice.why
        elif result.choice is not None and "9 * 2 = =" in result.response:
            assert "couldn't be checked" in result.choice.why
            assert result.choice.value < 1.0
    assert accepted[0.0] >= accepted[1.0] > 0


def test_a_loop_is_rejected_under_every_selector():
    """Two ways to one state: the second is rejected where it has as many steps."""

    class Counted(Rule):
        async def __call__(self, problem, prompt_ids, steps):
            judged = await super().__call__(problem, prompt_ids, steps)
            return replace(judged, state=str(len("".join(step.text for step in steps))))

    alike = {Counted: set(), Rule: set()}
    for select in ("puct", "ucb1", "gumbel"):
        for kind, most in alike.items():
            rule = kind(lambda text: 0.9)  # no response ends the tree
            more = {"select": select, "simulations": 60, "verifier": rule}
            more["verify"] = {"accept_above": 1.0}
            tree = scripted.search(ScriptedPolicy(0), PROBLEM, seed=1, evaluate=None, **more).tree
            states = Counter(
                (len(tree.path(node)), len(tree.response(node)))
                for node in range(1, len(tree))
                if tree.verdict[node] != REJECTED
            )
            most.add(max(states.values()))
    assert alike[Counted] == {1} and max(alike[Rule]) > 1
