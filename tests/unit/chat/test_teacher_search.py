"""Teachers in searches: when they are asked, and what they learn of their steps."""

from collections import Counter

from scripted import ScriptedAdvisor, ScriptedPolicy, a_problem, run, search
from support import grpo_config

from alphazero_llm_trainer.engine.protocol import TeacherProposal
from alphazero_llm_trainer.errors import RequestError
from alphazero_llm_trainer.policy.engine_steps import EngineSteps
from alphazero_llm_trainer.policy.student import load_student
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
