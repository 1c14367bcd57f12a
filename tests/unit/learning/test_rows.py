"""A round's rows by each way of giving credit, over real trees of the shipped student."""

import asyncio
import itertools
import math
from collections import Counter
from dataclasses import asdict, replace
from statistics import fmean

import pytest
from support import Source, grpo_config

from alphazero_llm_trainer.engine.protocol import Judgement
from alphazero_llm_trainer.learning import rows as rows_module
from alphazero_llm_trainer.learning.credit import (
    clamp,
    group_advantages,
    process_advantages,
    zero_variance,
)
from alphazero_llm_trainer.learning.learner import Learner, RateSchedule
from alphazero_llm_trainer.learning.methods.grpo import Grpo
from alphazero_llm_trainer.learning.models import MemoryOptions
from alphazero_llm_trainer.learning.stats import RoundStats
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.registry import source_of as problems_of
from alphazero_llm_trainer.runs.progress import show_round
from alphazero_llm_trainer.tree.arena import REJECTED, ROOT
from alphazero_llm_trainer.tree.extract import trajectories
from alphazero_llm_trainer.types import STUDENT, StepCheck

QUESTIONS = 24
OVERRIDES = [
    "student=embedded",
    "rewards.use_student_model=false",
    f"train.questions_per_round={QUESTIONS}",
    "train.demonstration_share=0",
    "train.negative_weight=1.0",
    "train.rows_per_round=400",
]


class Likely:
    """A verifier of its own kind: a step is as right as its tokens are likely on average. It counts
    its calls under way.
    """

    name, checks, guides, computes = "likely", True, False, False
    scored_tokens = alive = most = 0

    async def __call__(self, problem, prompt_ids, steps):
        self.alive += 1
        self.most = max(self.most, self.alive)
        await asyncio.sleep(0)
        self.alive -= 1
        scores = tuple(math.exp(math.fsum(step.logprobs) / len(step.logprobs)) for step in steps)
        self.scored_tokens += sum(len(step.token_ids) for step in steps)
        return Judgement(scores, math.prod(scores))


def source_of(folder, *overrides):
    config = grpo_config([*OVERRIDES, *overrides])
    tasks = load_tasks("embedded", "train", QUESTIONS, levels=config.problems.levels, start=1000)
    return Source.of(config, tasks, folder, Likely())


def key(row):
    return row.prompt_ids, row.completion_ids


def taught(rows):
    """The rows that teach something, by prompt and response."""
    return {key(row): row for row in rows if any(row.advantages)}


def test_process_credit_is_the_outcomes_and_a_share_of_the_processs(tmp_path):
    settings = "train.credit=process", "train.process_weight=0.25", "search.concurrent=3"
    source = source_of(tmp_path, *settings)
    rows, verifier = taught(source.rows()), source.builder.scorer
    assert source.stats.cost.scored_tokens == verifier.scored_tokens > 0
    assert verifier.most == 3  # as many at once as trees are searched at once
    mixed = 0
    for tree in source.trees():
        found = trajectories(tree.tree)
        rewards, counts = [float(t.hre or 0.0) for t in found], [t.samples for t in found]
        if zero_variance(rewards):
            continue
        mixed += 1
        # In step mode a tree's steps are the lines that the verifier sees.
        scores = []
        for t in found:
            logprobs = iter(t.logprobs)
            pieces = [[*itertools.islice(logprobs, length)] for length in t.lengths]
            scores.append([math.exp(math.fsum(piece) / len(piece)) for piece in pieces])
        process = process_advantages(scores, [t.lengths for t in found], counts)
        outcome = group_advantages(rewards, counts)
        for t, whole, steps in zip(found, outcome, process, strict=True):
            expected = [t.samples * clamp(whole + 0.25 * step, 3.0) for step in steps]
            row = rows[source.prompt(tree), t.token_ids]
            assert row.advantages == pytest.approx(expected)
    assert mixed >= 3


@pytest.mark.parametrize("credit", ["step", "group"])
def test_credit_by_correctness_knows_nothing_else(credit, tmp_path):
    def sampled(source):
        return source.builder.sample_rows(0, trees, RoundStats(0))

    source = source_of(tmp_path, f"train.credit={credit}")
    trees, _ = source.rounds.search(0)
    wrong = {
        (source.prompt(tree), t.token_ids)
        for tree in trees
        for t in trajectories(tree.tree)
        if not t.hre
    }
    rows = sampled(source)
    ends = [row.advantages[-1] for name, row in taught(rows).items() if name in wrong]
    assert len(ends) >= 10 and max(ends) <= 0.0, "no wrong response is praised for its last step"
    # As if the combined reward had liked wrong responses: with PRE it can be any number in [0, 1].
    for tree in trees:
        searched = tree.tree
        searched.W = [n * (0.1 + 0.8 * (node % 2)) for node, n in enumerate(searched.N)]
        searched.reward = [None if reward is None else 1.0 - reward for reward in searched.reward]
    trees = [replace(tree) for tree in trees]  # whose responses are extracted anew
    assert sampled(source) == rows
    combined = source_of(tmp_path / "combined", f"train.credit={credit}", "train.reward=combined")
    assert sampled(combined) != rows


def test_a_run_that_goes_on_draws_the_same_rows_from_its_journal(tmp_path):
    found = []
    for _ in range(2):
        source = source_of(tmp_path, "train.demonstration_share=0.5", "train.rows_per_round=60")
        levels = source.config.problems.levels
        shown = source.builder.demonstrations = load_tasks("embedded", "train", 3, levels=levels)
        found.append(source.rows())
    assert found[0] == found[1]
    replayed = [row for row in found[0] if row.kind == "demonstration"]
    assert len(replayed) >= 60 and all(row.advantages[0] == 0.5 for row in replayed)
    worked = {source.builder.student.solution_ids(task)[0] for task in shown}
    assert {row.prompt_ids for row in replayed} == worked


def test_rft_takes_each_questions_right_responses_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "RESPONSES", 1)
    source = source_of(tmp_path, "train.method=rft")
    rows, wanted, more = source.rows(), set(), False
    for tree in source.trees():
        right = [t for t in trajectories(tree.tree) if t.right]
        more = more or len(right) > 1
        if right:
            best = max(right, key=lambda t: t.samples)
            wanted.add((source.prompt(tree), best.token_ids))
    assert more, "no question has more right responses than are taken"
    assert {*map(key, source.builder.own)} == wanted >= {*map(key, rows)}
    assert {value for row in rows for value in row.weights} == {1.0}


def test_a_rounds_own_rows_decide_its_updates(tmp_path):
    def rows(name, *overrides):
        source = source_of(tmp_path / name, "train.method=rft", *overrides)
        return source.rows(), source.stats

    once, stats = rows("once", "train.optimizer.epochs=1", "train.updates_per_round=1000")
    assert 2 <= stats.updates == math.ceil(stats.rows / 16) and len(once) == 16 * stats.updates
    most, capped = rows("most", "train.updates_per_round=2")
    # The same rows in the same order, however many follow.
    assert capped.updates == 2 and most == once[:32]
    none, silent = rows("none", "train.method=legacy", "search.temperature=0")
    assert none == [] and (silent.rows, silent.updates) == (0, 0)  # every group is flat


@pytest.mark.parametrize("method", ["rft", "alphazero"])
def test_few_responses_are_passed_over_three_times_at_most(method, tmp_path, capsys):
    asked = ["train.optimizer.epochs=1000", "train.updates_per_round=120", "train.groups=verified"]
    source = source_of(tmp_path, f"train.method={method}", *asked, "rewards.pre_weight=0")
    trees, stats = source.rounds.search(0)
    solved = [tree for tree in trees if any(response.right for response in tree.responses)]
    builder, passed, most = source.builder, Counter(), source.config.train.buffer_passes
    assert len(solved) >= 4 and most == 3
    for number, some in enumerate((solved[:1], solved[1:3], solved[3:])):
        stats = RoundStats(number)
        made = builder.minibatches(number, some, stats)
        for batch in made:
            own = [row.index for row in batch if any(row.weights + row.pi)]
            assert own and len(batch) == len({id(row) for row in batch}), "a row comes twice"
        drawn = sum(any(row.weights + row.pi) for batch in made for row in batch)
        assert 2 * len(builder.own) < drawn <= most * len(builder.own)
        assert stats.updates == len(made) > 0
        assert stats.updates_left_out == 120 - stats.updates > 0
        passed[number] = drawn
    assert passed[0] < passed[1] < passed[2], "more responses have more updates"
    show_round(Progress(), asdict(stats), "3/4", compares=False)
    said = capsys.readouterr().err
    assert f"{stats.updates_left_out} fewer than wanted (train.buffer_passes)" in said


VERIFIED = """
    train.groups=verified train.method=rft problems.levels=[2,3] rewards.pre_weight=0
    search.simulations=4 search.verify.first_temperature=1.0
""".split()


def test_verified_groups_hold_what_the_rule_passed_and_are_graded_by_gold(tmp_path):
    source, rejected, wrong = source_of(tmp_path, *VERIFIED), 0, 0
    source.rows()
    for found in source.trees():
        problem, tree, rule = found.task.problem, found.tree, problems_of(found.task.problem)
        for node in range(ROOT + 1, len(tree)):
            right = rule.check_step(problem, [step.text for step in tree.steps(node)])
            assert (right is False) == (tree.verdict[node] == REJECTED)
            assert tree.prm[node] == (None if right is StepCheck.NOTHING else float(right))
            rejected += right is False
        assert not tree.rollouts  # nothing that was not judged
        for leaf in (leaf for leaf in tree.leaves() if tree.verdict[leaf] == "answer"):
            [grade] = rule.grade_many([(tree.response(leaf), found.task)])
            assert tree.hre[leaf] == grade.score and (tree.W[leaf] > 0) == bool(grade.score)
            wrong += not grade.score
    assert rejected and wrong and source.stats.solved and not source.stats.failed


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_a_round_with_too_few_rows_has_smaller_minibatches_of_rows_that_teach(
    method, tmp_path, capsys
):
    groups = "chain" if method == "ppo" else "tree"
    settings = f"train.method={method}", f"train.groups={groups}", "train.rows_per_round=1300"
    source = source_of(tmp_path, *settings, "train.optimizer.batch_size=13")
    made, stats = source.minibatches(), source.stats
    sizes = [len(batch) for batch in made]
    assert stats.rows == sum(sizes) == 1300 - stats.rows_filled and stats.rows_filled
    assert sum(sizes) % 13 and max(sizes) - min(sizes) <= 1 and max(sizes) <= 13
    assert stats.updates == len(made) * source.config.train.optimizer.epochs
    assert {row.kind for batch in made for row in batch} == {"policy"}
    if method == "ppo":
        return
    # The policy that sampled them: all ratios are 1, and the loss is the mean advantage of a token.
    model = source.builder.student.model
    learner = Learner(
        model,
        Grpo(source.config.train.with_values(kl_coefficient=0.04), model),
        MemoryOptions(micro_batch=3),
        RateSchedule(0.01, 0, 99),
        source.config.train.optimizer,
    )
    learner.begin(0, made)
    tokens = [a for row in made[0] for a in row.advantages]
    assert learner.update(made[0])["loss"] == pytest.approx(-fmean(tokens), abs=1e-4)
    alike = [
        tree for tree in source.trees() if source.rounds.collector.zero_variance(tree.responses)
    ]
    silent = RoundStats(1)
    assert source.builder.minibatches(1, alike, silent) == [] and alike
    assert (silent.rows, silent.updates, silent.rows_filled) == (0, 0, 1300)
    show_round(Progress(), asdict(stats), "1/4", compares=True)
    assert f"{stats.rows} responses of 1300 wanted" in capsys.readouterr().err


# -- teachers' responses ---------------------------------------------------------------------------

TAUGHT = ["teachers.tier=embedded", "problems.levels=[2,3]", "train.requeue_limit=0"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_switch_keeps_teachers_tokens_out_of_grpo(tmp_path, keep):
    source = source_of(tmp_path, *TAUGHT, f"train.teacher_rows={keep}")
    rows = taught(source.rows())
    expected, alike, alike_with_teachers = {}, 0, 0
    for tree in source.trees():
        every = trajectories(tree.tree)
        counted = [t for t in every if keep or t.student]
        # The baseline is the group's own: a teacher's rewards are in it only where its rows are.
        rewards, counts = [float(t.hre or 0.0) for t in counted], [t.samples for t in counted]
        alike += len(set(rewards)) < 2
        alike_with_teachers += len({t.hre for t in every}) < 2
        if len(set(rewards)) > 1:
            for t, advantage in zip(counted, group_advantages(rewards, counts), strict=True):
                expected[source.prompt(tree), t.token_ids] = (t.samples * advantage, t.source)
    assert {name: (row.advantages[0], row.source) for name, row in rows.items()} == expected
    sources = {STUDENT, *["teacher:scripted"] * keep}
    assert {row.source for row in rows.values()} == sources
    # Taken in with the student's own log-probabilities, one a token.
    for row in rows.values():
        assert len(row.old_logprobs) == len(row.completion_ids) and max(row.old_logprobs) <= 0.0
    # What has nothing to learn from goes by the responses that are learned from: teachers' wrong
    # steps make the difference.
    assert source.stats.flat == alike and (keep or alike > alike_with_teachers)
