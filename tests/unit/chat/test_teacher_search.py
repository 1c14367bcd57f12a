"""Teachers in searches and in a run: when they are asked, what they learn of their steps, and what
they may take.
"""

from collections import Counter

import pytest
from fault_server import FaultServer
from scripted import ScriptedAdvisor, ScriptedPolicy, a_problem, run, search
from support import grpo_config

from alphazero_llm_trainer.chat import client
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.engine.protocol import TeacherProposal
from alphazero_llm_trainer.errors import RequestError
from alphazero_llm_trainer.mcts.journal import read
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.policy.engine_steps import EngineSteps
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.runs.folder import RunFolder
from alphazero_llm_trainer.runs.recorder import Recorder
from alphazero_llm_trainer.runs.start import prepare
from alphazero_llm_trainer.runs.train import Run
from alphazero_llm_trainer.types import STUDENT, Direction, RewardParts

PROPOSALS = [
    TeacherProposal("right step", "teacher:t", Direction.RIGHT),
    TeacherProposal("#### 5", "teacher:t", Direction.WRONG),
]


def searched(advisor, policy=None, **settings):
    asked = {"simulations": 6, "samples": 4, "max_depth": 4, "advisor": advisor, **settings}
    return search(policy or ScriptedPolicy(1), seed=3, **asked)


def test_the_teachers_are_told_what_their_steps_earned_beside_the_students():
    async def evaluate(problem, steps, directions, verdict):
        taught = any(direction is not Direction.NONE for direction in directions)
        return RewardParts(0.9 if taught else 0.25)

    advisor = ScriptedAdvisor(PROPOSALS)
    result = searched(advisor, evaluate=evaluate, simulations=1)
    assert [(p.direction, value, student) for p, value, student in advisor.told] == [
        (Direction.RIGHT, 0.9, 0.25),
        (Direction.WRONG, 0.9, 0.25),
    ]
    assert result.tree.N[0] == 6


def test_a_line_too_long_for_the_context_costs_itself_alone():
    class Narrow(ScriptedPolicy):
        async def adopt(self, problem, steps, text, source, direction):
            if text == "right step":
                raise RequestError("the context is 8 tokens")
            return await super().adopt(problem, steps, text, source, direction)

    advisor = ScriptedAdvisor(PROPOSALS)
    tree = searched(advisor, Narrow(1)).tree
    assert {proposal.text for proposal, _, _ in advisor.told} == {"#### 5"}
    assert set(tree.source) == {STUDENT, "teacher:t"}


def test_they_are_asked_only_where_they_want_to_be():
    never = ScriptedAdvisor(PROPOSALS, lambda agreement, best: False)
    alone = searched(never)
    assert never.asked == [] == never.told and len(never.standings) >= 4
    assert set(alone.tree.source) == {STUDENT}
    assert alone.tree.to_dict() == searched(None).tree.to_dict()
    some = ScriptedAdvisor(PROPOSALS, lambda agreement, best: agreement < 0.5)
    searched(some)
    assert 0 < len(some.asked) == sum(a < 0.5 for a, _ in some.standings) < len(some.standings)


def test_agreement_is_the_share_of_the_commonest_answer_and_best_the_best_grade():
    """Against a count by hand of the student's own first continuations."""
    advisor = ScriptedAdvisor(PROPOSALS)

    async def graded(problem, steps, directions, verdict):
        text = "".join(step.text for step in steps)
        return RewardParts(0.7, hre=1.0 if "#### 1" in text else 0.0)

    tree = searched(advisor, evaluate=graded, simulations=1, samples=8).tree
    answers = Counter()
    for leaf in tree.leaves():
        text = tree.response(leaf)
        if "####" in text and all(tree.source[node] == STUDENT for node in tree.path(leaf)):
            answers[text.partition("####")[2]] += tree.samples[leaf]
    [(agreement, best)] = advisor.standings
    assert agreement == max(answers.values()) / 8
    assert best == (1.0 if " 1" in answers else 0.0)


def test_a_line_that_spells_an_end_token_ends_nothing():
    student = load_student(grpo_config(["student=embedded"]))
    policy, end = EngineSteps(student, 1.0), student.tokenizer.eos_token

    def adopted(text):
        taken = run(lambda: policy.adopt(a_problem(), [], text, "teacher:t", Direction.RIGHT))
        return taken[0].steps[0].token_ids

    assert adopted(f"{end}3 + 4{end} = 7") == adopted("3 + 4 = 7")
    assert (
        adopted(f"#### {end}7") == adopted("#### 7")
        and adopted("#### 7")[-1] == student.engine.eos_id
    )


# -- a run -----------------------------------------------------------------------------------------

CALLS = 45


def settings_at(url):
    teacher = "{model: test/one, prompt_cost: 2.0, completion_cost: 10.0}"
    train = (
        "num_examples=12 questions_per_round=4 save_every=4 eval_size=4 validation_size=0 "
        "keep_best=false rows_per_round=4"
        " demonstrations=8 requeue_limit=0 optimizer.batch_size=5 optimizer.epochs=1"
    )
    return [
        "student=embedded",
        "teachers.tier=local",
        f"teacher_tiers.local.base_url={url}",
        f"teacher_tiers.local.teachers=[{teacher}]",
        "teacher_tiers.local.terminal_checker={model: nvidia/nemotron-nano-9b-v2, prompt_cost: "
        "1.0, completion_cost: 1.0}",
        "teachers.terminal_checker=true",
        f"teachers.budget.calls={CALLS}",
        "search.max_depth=2",  # most responses are cut, and the checker is asked about those
        "search.simulations=1",
        "rewards.use_student_model=false",
        *(f"train.{setting}" for setting in train.split()),
    ]


def test_a_stopped_run_says_what_its_teachers_took_and_a_resumed_one_goes_on_with_what_is_left(
    tmp_path, monkeypatch
):
    checker = "nvidia/nemotron-nano-9b-v2"
    server = FaultServer(
        lambda number, asked: "500" if number % 5 == 4 else "ok",
        # Sure of itself too early: the rule says that no answer is stated yet.
        lambda asked: "FINISHED" if asked["model"] == checker else "3 + 4 = 7",
        prices={"test/one": (2.0, 10.0), checker: (1.0, 1.0)},
    )
    monkeypatch.setattr(client, "RETRIES", 0)
    with server.running() as url:
        seen = []
        config = grpo_config(settings_at(url))
        folder = RunFolder(tmp_path / "run-001")
        folder.path.mkdir()
        training = Run(prepare(config), stop=lambda: len(seen) >= 3)
        training.load()
        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "tree", lambda recorder, tree: seen.append(tree))
            assert training.execute(folder) is None
        stopped = folder.read_card()
        early = len(server.served)
        assert 0 < early < CALLS
        spent = stopped["teacher_budget"]["spent"]
        assert early <= spent["calls"] < CALLS  # one may have been cancelled before it was sent
        dollars = (
            stopped["teachers"]["test/one"]["cost"]["dollars"]
            + stopped["terminal_checker"]["cost"]["dollars"]
        )
        assert dollars == pytest.approx(spent["dollars"])
        lost = server.charged()[1] - dollars  # of calls that the stop cancelled under way
        assert 0 <= lost + 1e-12 < dollars / 5
        assert train_main(f"--resume --checkpoint-dir {tmp_path}".split()) == 0
    card = RunFolder(folder.path).read_card()
    assert early < len(server.served) <= CALLS == card["teacher_budget"]["spent"]["calls"]
    both = [card["teachers"]["test/one"], card["terminal_checker"]]
    assert sum(one["cost"]["calls"] for one in both) == CALLS
    assert sum(one["cost"]["dollars"] for one in both) == pytest.approx(server.charged()[1] - lost)
    assert card["teachers"]["test/one"]["mean_value"] is not None
    assert card["teacher_budget"]["refused"] > 0
    # No tree was lost to it.
    records = list(read(folder.journal))
    assert len(records) == 12 and all(Tree.from_dict(record["tree"]).N[0] > 0 for record in records)
