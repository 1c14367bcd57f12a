"""Rows of episodes in worlds: tokens, masks, rewards and credit of hand-made ones, and losses that
what a world gave has no part in.
"""

import asyncio
import itertools
import math
from contextlib import closing
from dataclasses import replace

import pytest
import torch

from alphazero_llm_trainer.chat.tool_calls import write_line
from alphazero_llm_trainer.config.load import load_training
from alphazero_llm_trainer.engine.protocol import Generated
from alphazero_llm_trainer.errors import ConfigError, DataError
from alphazero_llm_trainer.learning.collector import Collector
from alphazero_llm_trainer.learning.earned import credits_combined, measures_perplexity
from alphazero_llm_trainer.learning.methods.by_name import method_of
from alphazero_llm_trainer.learning.methods.grpo import check_credit
from alphazero_llm_trainer.learning.prepared import Prepared
from alphazero_llm_trainer.learning.scoring import Scores
from alphazero_llm_trainer.learning.size import RunSize
from alphazero_llm_trainer.learning.stats import RoundStats
from alphazero_llm_trainer.policy.proposals import make_steps
from alphazero_llm_trainer.problems.registry import open_source, with_worlds
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.rewards.demonstrations import turn_ids, work_out
from alphazero_llm_trainer.rewards.terminal import make_evaluate
from alphazero_llm_trainer.rewards.turns import TurnPolicy
from alphazero_llm_trainer.runs.critic_data import example_of, read_questions, state_rows
from alphazero_llm_trainer.runs.sft import sft_rows, student_from_scratch
from alphazero_llm_trainer.tree.arena import ROOT, Tree
from alphazero_llm_trainer.tree.extract import Trajectory, turn_values
from alphazero_llm_trainer.tree.graded import GradedTree, tree_record
from alphazero_llm_trainer.tree.journal import JOURNAL, Journal
from alphazero_llm_trainer.types import Cost, Direction, RewardParts, Said, Step

SOURCES = ("hidden", "calc")
EVEN = ("train.negative_weight=1", "train.reward=hre")


def config_of(source, *more):
    own = [f"problems.source={source}", "student=small", "rewards.use_student_model=false"]
    return load_training(overrides=[*own, "teachers.tier=none", *more])


@pytest.fixture(scope="module")
def students():
    return {
        name: student_from_scratch(config_of(name), build_tokenizer(open_source(config_of(name))))
        for name in SOURCES
    }


def demonstration(config):
    """A task with a demonstration of three turns or more."""
    source = open_source(config)
    tasks = source.demonstrations(40)
    return source, next(task for task in tasks if len(source.turns(task)) >= 3)


def by_hand(source, task, student):
    """The texts of a demonstration, turns and answers in turn."""
    turns = [write_line(said) + "\n" for said in source.turns(task)]
    if source.name == "calc":
        answers = [step.rpartition(" = ")[2] + "\n" for step in task.solution.split("\n")[:-1]]
    else:
        row, answers = task.problem.question.partition(": ")[2], []
        for turn in turns[:-1]:
            row = row[: int(turn)][::-1] + row[int(turn) :]
            answers.append(row + "\n")
    return [text for pair in itertools.zip_longest(turns, answers) for text in pair if text]


async def played(turns, task, said):
    """The steps of an episode with these turns."""
    path = []
    async with turns.episode(task.problem):
        stage = turns.stages[task.problem.id]
        for one in said:
            ids = await turn_ids(stage, one, path)
            step, over = await stage.act(path, Generated(ids, (-0.5,) * len(ids), "stop"))
            path.append(step)
            if over:
                break
        evaluate = make_evaluate(turns.config.rewards, None, {task.problem.id: task}, turns=turns)
        reward = await evaluate(task.problem, path, [Direction.NONE] * len(path), "ended")
        return path, reward, stage.prompt


def grown(config, student):
    """A graded tree of a right episode and of a wrong one that parts from it after its first turn;
    and the right one's steps.
    """
    source, task = demonstration(config)
    turns = TurnPolicy(student, config.search, make_steps(student, 1.0))
    turns.tasks, turns.config = {task.problem.id: task}, config
    said = source.turns(task)
    wrong = said[:1] + ([Said("#### 999")] if source.name == "calc" else [Said("2"), Said("2")] * 6)
    tree, paths = Tree(), []
    for choice, right in ((said, 1.0), (wrong, 0.0)):
        path, reward, prompt = asyncio.run(played(turns, task, choice))
        assert reward.hre == right
        node = ROOT
        for step in path:
            node = tree.attach(node, step)
        tree.finish(node, "ended", reward)
        tree.samples[node] = 1
        paths.append(path)
    graded = GradedTree("0/k", task, tree, Cost(), "simulations", False, 0, prompt)
    return graded, paths


def builder_of(config, student, graded):
    method = method_of(config.train.method)
    size = RunSize(config, method.supervised)
    prepared = Prepared(config, method, size, [], [graded.task], [], [])
    return method.rows(prepared, student, Collector(student, config, method, None), None)


@pytest.mark.parametrize("name", SOURCES)
def test_a_demonstration_is_a_hand_made_episode_token_by_token(students, name):
    config, student = config_of(name), students[name]
    source, task = demonstration(config)
    texts = by_hand(source, task, student)
    parts = [student.encode(text) for text in texts]
    ids = tuple(token for part in parts for token in part)
    mask = tuple(at % 2 == 0 for at, part in enumerate(parts) for _ in part)
    [made] = work_out(student, config.search, [task])
    assert made == (student.prompt_ids(task.problem.question), ids, mask)
    [row], [scratch] = sft_rows([task], student), sft_rows([task], student, 0.1)
    assert (row.completion_ids, row.mask) == (ids, mask) and row.own_tokens == sum(mask)
    asked = len(made.prompt_ids) - 1  # a student from scratch learns the question too
    assert scratch.mask == (True,) * asked + mask and scratch.completion_ids[asked:] == ids


def test_a_demonstration_that_earns_nothing_is_refused(students, monkeypatch):
    config, student = config_of("calc"), students["calc"]
    source, task = demonstration(config)
    for said, why in ((["#### 999"], "earns nothing"), ([], "doesn't end"), (["#### 1"] * 2, "")):
        shown = [Said(text) for text in said]
        monkeypatch.setattr(type(source), "turns", lambda self, task, shown=shown: shown)
        with pytest.raises(DataError, match=f"demonstration of '{task.problem.id}' {why}"):
            work_out(student, config.search, [task])


METHODS = ("expert_iteration", "rft", "grpo", "ppo", "alphazero")


def objective_of(method, config, student, rows):
    """A method's objective over a tiny model, and the values of `rows` where it has them."""
    made = method_of(method).objective(config.train, student.model, None)
    if method == "ppo":
        numbers = {row.index: [0.3] * len(row.completion_ids) for row in rows}
        made.white = made.returns = made.estimates = numbers
    return made


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("method", METHODS)
def test_what_a_world_gave_is_in_no_loss(students, name, method):
    more = {"grpo": ["train.credit=turn", "train.reward=hre"], "ppo": ["train.groups=chain"]}.get(
        method, []
    )
    if method == "alphazero":
        more = ["train.groups=verified", "train.credit=path", "engine.backend=inprocess"]
    config, student = config_of(name, f"train.method={method}", *more), students[name]
    graded, paths = grown(config, student)
    builder = builder_of(config, student, graded)
    credited = method in ("grpo", "ppo")
    rows = (
        builder.sample_rows(0, [graded], RoundStats(0)) if credited else builder.remember([graded])
    )
    if method == "alphazero":
        rows += builder.states
    assert rows and all(row.prompt_ids == graded.prompt_ids for row in rows)
    masks = {}
    for path in paths:
        ids = tuple(token for step in path for token in step.token_ids)
        masks[ids] = tuple(at < s.drawn for s in path for at in range(len(s.token_ids)))
    for row in rows:
        size = max(len(ids) for ids in masks if ids == row.completion_ids[: len(ids)])
        known = row.completion_ids[:size]
        # Behind it: the token whose state is the end's.
        assert row.mask == masks[known] + (True,) * (len(row.completion_ids) - size)
    objective = objective_of(method, config, student, rows)
    totals = torch.tensor(objective.totals(rows))
    width = max(len(row.completion_ids) for row in rows)
    torch.manual_seed(0)
    drawn = torch.zeros(len(rows), width, dtype=torch.bool)
    for at, row in enumerate(rows):
        drawn[at, : len(row.mask)] = torch.tensor(row.mask)
    valued = method in ("ppo", "alphazero")
    losses = []
    base, values = -torch.rand(len(rows), width), torch.rand(len(rows), width)
    for change in (0.0, -30.0):
        logprobs = torch.where(drawn, base, base + change).requires_grad_()
        states = torch.where(drawn, values, values + change).requires_grad_()
        scores = Scores(logprobs, base, values=states if valued else None)
        loss, _ = objective.loss(rows, scores, totals)
        loss.backward()
        losses.append(loss.item())
        assert not logprobs.grad[~drawn].any() and logprobs.grad[drawn].any()
        if valued:
            assert not states.grad[~drawn].any() and states.grad[drawn].any()
    assert losses[0] == losses[1]
    # Divisors count no given token.
    other = [replace(row, completion_ids=(7,) * len(row.completion_ids)) for row in rows]
    assert objective.totals(rows) == objective.totals(other)
    if credited:
        assert objective.totals(rows)[0] == drawn.sum()


def test_turn_credit_is_less_the_value_of_other_samples(students):
    config = config_of("calc", "train.method=grpo", "train.credit=turn", *EVEN)
    graded, (right, wrong) = grown(config, students["calc"])
    builder = builder_of(config, students["calc"], graded)
    rows = builder.sample_rows(0, [graded], RoundStats(0))
    first, *later = (len(step.token_ids) for step in right)
    count = len(right) + len(wrong)
    scale = math.sqrt((count - 2) / count)  # all differences are 1, but the shared turn's
    by_ids = {row.completion_ids: row.advantages for row in rows}
    for path, sign in ((right, 1.0), (wrong, -1.0)):
        ids = tuple(token for step in path for token in step.token_ids)
        rest = len(ids) - first
        assert by_ids[ids] == pytest.approx([0.0] * first + [sign / scale] * rest)
    assert later


def test_values_of_turns_leave_the_childs_own_samples_out():
    # root 1 of 4 right; node 1 has 3 of them (1 right), node 2 below it 2 (1 right), node 3 one.
    counts, sums = [4, 3, 2, 1], [1.0, 1.0, 1.0, 1.0]
    way = Trajectory((1,) * 3, (0.0,) * 3, (1, 2, 3), (1,) * 3, 1.0, 1.0, 1, "student", "")
    assert turn_values(way, 1.0, counts, sums) == [(1 / 3, 0.0), (0.5, 0.0), (1.0, 0.0)]
    # Alone at each state: the nearest one above with other samples is the baseline.
    assert turn_values(way, 0.0, [4, 1, 1, 1], [3.0, 0, 0, 0]) == [(0.0, 1.0)] * 3
    assert turn_values(way, 1.0, [1, 1, 1, 1], [1.0] * 4) == [(1.0, 1.0)] * 3


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["train.method=legacy"], "train.method is legacy and source calc has turns"),
        (["train.method=distill"], "train.method is distill and source calc has turns"),
        (["train.method=grpo", "search.mode=token"], "search.mode=token is set and source calc"),
        (["train.method=grpo", "teachers.tier=embedded"], "teachers.tier is set and source calc"),
        (
            ["train.method=rft", "rewards.use_student_model=true"],
            "rewards.use_student_model=true is set and source calc",
        ),
    ],
)
def test_what_cannot_learn_from_turns_is_refused(more, why):
    config = config_of("calc", *more)
    with pytest.raises(ConfigError, match=why):
        with_worlds(config, "train", True, method_of(config.train.method))


def test_worlds_reward_their_turns_and_a_line_says_so(caplog):
    """GRPO's own recipe has perplexity in its rewards, and teachers where a key is there."""
    asked = ["train.method=grpo", "problems.source=calc", "student=small"]
    config = load_training(overrides=asked).with_values(teachers={"tier": "free"})
    method = method_of("grpo")
    assert measures_perplexity(config, method)
    settled = with_worlds(config, "train", True, method)
    assert not settled.rewards.measures and not credits_combined(settled)
    assert settled.teachers.tier == "none" and "without perplexity (PRE)" in caplog.text
    caplog.clear()
    assert with_worlds(settled, "train", True, method) == settled and not caplog.text
    plain = load_training(overrides=["train.method=grpo"])
    assert with_worlds(plain, "train", True, method) is plain and not caplog.text


def test_credit_that_does_not_fit_the_source_is_refused():
    for source, credit, why in (
        ("embedded", "turn", "credit is turn and source embedded has no turns"),
        ("calc", "process", "credit is process, which scores lines"),
    ):
        with pytest.raises(ConfigError, match=why):
            check_credit(config_of(source, "train.method=grpo", f"train.credit={credit}"))


def test_a_critic_reads_behind_the_prompt_of_the_world(students, tmp_path):
    """Prompts of one question that differ, by their tools, are two questions; a tree without turns
    is read behind the student's own prompt.
    """
    config, student = config_of("calc"), students["calc"]
    graded, _ = grown(config, student)
    problem, tree = graded.task.problem, Tree()
    tree.finish(tree.attach(ROOT, Step((5,), (-0.1,), "x")), "ended", RewardParts(total=1.0))
    tree.samples[1] = 1
    own = student.prompt_ids(problem.question)
    with closing(Journal(tmp_path / JOURNAL)) as journal:
        for key, one, prompt in (
            ("0/a", graded.tree, (*own, 3)),
            ("0/b", graded.tree, (*own, 4)),
            ("0/c", graded.tree, (*own, 3)),
            ("0/d", tree, (*own, 9)),
        ):
            parts = (key, problem, one, Cost(), "simulations", prompt, 0)
            journal.append(tree_record(*parts, split="train"))
    questions = read_questions([tmp_path], len(student.tokenizer))
    examples = [example_of(question, student, config.train.critic) for question in questions]
    assert [example.prompt_ids for example in examples] == [(*own, 3), (*own, 4), own]
    for example in examples:
        assert {row.prompt_ids for row in state_rows(example)[0]} == {example.prompt_ids}
