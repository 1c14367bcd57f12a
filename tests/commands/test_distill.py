"""On-policy distillation: what a tree's draws count, what the update does with them, and whom it
takes for a teacher.
"""

import asyncio
import itertools
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
from completion_server import CompletionServer
from safetensors.torch import load_file, save_file
from support import EOS, Source, library_scores, tiny_chat, tiny_engine, tiny_llama
from tables import read_json

from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.config.load import load_training
from alphazero_llm_trainer.config.train import OptimizerConfig
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.files import write_json
from alphazero_llm_trainer.learning.learner import Learner, RateSchedule
from alphazero_llm_trainer.learning.methods.distill import (
    DISTILL,
    DrawnRows,
    count_draws,
    load_teacher,
)
from alphazero_llm_trainer.learning.models import MemoryOptions
from alphazero_llm_trainer.learning.stats import RoundStats
from alphazero_llm_trainer.learning.train_row import TrainRow
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.runs.folder import RunFolder
from alphazero_llm_trainer.tree.arena import ROOT, Tree
from alphazero_llm_trainer.tree.graded import GradedTree
from alphazero_llm_trainer.types import Cost, Problem, RewardParts, Step, Task

PROMPT = (40, 41)
# What two simulations drew: three responses from the root, two of them one, then two from (10, 11).
FIRST = [((10, 11), (12, EOS)), ((10, 11), (12, EOS)), ((10, 13, EOS),)]
THEN = [((12, EOS),), ((14, 15), (EOS,))]


def a_tree(model):
    """The tree of these draws, with the model's own log-probabilities."""
    tree = Tree()

    def simulation(leaf, drawn):
        before = (*PROMPT, *tree.sequence(leaf)[0])
        for steps in drawn:
            node, ids = leaf, before
            for step in steps:
                step_logprobs = tuple(library_scores(model, ids, step))
                node, ids = tree.attach(node, Step(step, step_logprobs, str(step))), ids + step
            if tree.verdict[node] is None:
                tree.finish(node, "ended", RewardParts(total=1.0, hre=1.0))
            tree.samples[node] += 1
            tree.backup(node, 1.0)
        tree.simulated(leaf)

    simulation(ROOT, FIRST)
    simulation(1, THEN)
    tree.backup(2, 1.0)  # an end that is reached again is no new draw
    tree.simulated(2)
    return tree


@pytest.fixture
def models():
    """A student with its gradients, and a teacher."""
    return tiny_llama(3).requires_grad_(True), tiny_llama(4)


def builder(engine, tree):
    """Rows of this tree, and what makes them."""
    config = load_training(overrides=["train.method=distill", "train.teacher=embedded"])
    source = SimpleNamespace(demonstrations=[], size=None, config=config)
    made = DrawnRows(source, SimpleNamespace(prompt_ids=lambda question: PROMPT), None, engine)
    task = Task(Problem("p", "question", "numbers"), "1")
    return made, made.draw_rows(GradedTree("0/p", task, tree, Cost(), "simulations", False, 0))


def gradient(model, rows):
    """The loss of one update and the gradient by parameter."""
    train = load_training(overrides=["train.method=distill"]).train
    optimizer = OptimizerConfig.model_validate({"max_grad_norm": 1e9, "learning_rate": 1e-3})
    objective, rate = DISTILL.objective(train, model, None), RateSchedule(1e-3, 0, 10)
    made = Learner(model, objective, MemoryOptions(), rate, optimizer)
    made.compute(rows)
    return float(made.sums["loss"]), taken(model)


def taken(model):
    """The gradient by parameter, which the model has no more."""
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


def test_a_token_counts_as_often_as_it_was_drawn(models):
    tree = a_tree(models[0])
    # (10, 11) and (12, EOS) of the first simulation; (12, EOS) again, and (14, 15), of the second.
    assert count_draws(tree) == [0, 2, 3, 1, 1, 1]
    assert [(row.completion_ids, row.draws) for row in builder(None, tree)[1]] == [
        ((10, 11, 12, EOS), (3.0, 2.0, 3.0, 3.0)),
        ((10, 13, EOS), (0.0, 1.0, 1.0)),
        ((10, 11, 14, 15, EOS), (0.0, 0.0, 1.0, 1.0, 1.0)),
    ]


def test_the_gradient_is_that_of_each_draw_by_itself(models):
    """Against a loop over draws, each alone under the model's own forward."""
    (model, teacher), stats = models, RoundStats(0)
    made, rows = builder(tiny_engine(teacher), a_tree(model))
    loss, found = gradient(model, made.teach_rows(rows, stats))
    drawn = [((), steps) for steps in FIRST] + [((10, 11), steps) for steps in THEN]
    tokens = sum(len(step) for _, steps in drawn for step in steps)
    expected = kl = torch.tensor(0.0)
    for before, steps in drawn:
        prefix = (*PROMPT, *before)
        for token in itertools.chain(*steps):
            own = model(torch.tensor([prefix])).logits[0, -1].log_softmax(-1)[token]
            gap = library_scores(teacher, prefix, (token,))[0] - own.detach()
            expected = expected - gap * (own - own.detach()).exp() / tokens
            kl = kl - gap / tokens
            prefix = (*prefix, token)
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    torch.testing.assert_close(found, taken(model), atol=1e-5, rtol=1e-5)
    assert stats.teacher_kl == pytest.approx(float(kl), abs=1e-5)
    # Nine tokens that differ; one by one: three responses of 4, one of 3, one of 5.
    assert stats.cost.scored_tokens == 9 and stats.teacher_share == pytest.approx(9 / 20)


def test_in_the_mean_over_draws_it_is_the_gradient_of_the_reverse_kl(models):
    """Every next token, as often as the student draws it: KL(student || teacher),
    differentiated."""
    model, ids = models[0], torch.tensor([PROMPT])
    own, theirs = (one(ids).logits[0, -1].log_softmax(-1) for one in models)
    (own.exp() * (own - theirs.detach())).sum().backward()
    wanted, rows = taken(model), []
    for token, (logprob, other) in enumerate(zip(own.tolist(), theirs.tolist(), strict=True)):
        chance = math.exp(logprob)
        one = ((token,), (logprob,), (chance * (other - logprob),))
        rows.append(TrainRow(PROMPT, *one, draws=(chance,), index=token))
    _, found = gradient(model, rows)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def settings(teacher, *more):
    asked = ["train.method=distill", "student=embedded", {"train": {"teacher": str(teacher)}}]
    return load_training(overrides=[*asked, *more])


def test_a_teacher_that_is_the_student_teaches_nothing(tmp_path):
    sizes = ["search.samples=4", "train.rows_per_round=16", "train.optimizer.batch_size=8"]
    config = settings("embedded", *sizes)
    teacher = load_student(config).engine
    source = Source.of(config, load_tasks("embedded", "train", 4), tmp_path, teacher)
    rows, stats = source.rows(), source.stats
    assert max(abs(a) for row in rows for a in row.advantages) < 1e-4
    assert stats.teacher_kl == pytest.approx(0.0, abs=1e-5)
    # What is shared was scored once, and all that was drawn counts.
    counts = [w for row in rows if row.kind == "policy" for w in row.draws]
    assert stats.cost.scored_tokens == sum(w > 0 for w in counts) > 0
    assert 0.1 < stats.teacher_share < 1.0
    responses = [response for tree in source.trees() for response in tree.responses]
    assert sum(counts) == sum(one.samples * len(one.token_ids) for one in responses)


# -- runs ------------------------------------------------------------------------------------------

RUN = """
    --config distill --num-examples 24 --save-every 8 --eval-size 0 --quiet --seed 3
    --set train.questions_per_round=8 --set train.demonstrations=0 --set train.validation_size=0
    --set train.preflight=0 --set train.rows_per_round=48 --set train.optimizer.batch_size=16
    --set train.optimizer.epochs=2 --set train.optimizer.warmup=0
""".split()


@pytest.fixture(scope="module")
def blurred(tmp_path_factory):
    """The shipped student, somewhat forgetful: its weights with noise."""
    folder = tmp_path_factory.mktemp("students") / "blurred"
    shutil.copytree(PACKAGED, folder)
    weights = load_file(PACKAGED / "model.safetensors")
    torch.manual_seed(1)
    for name, tensor in weights.items():
        weights[name] = tensor + 0.3 * tensor.std() * torch.randn_like(tensor)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def whole(blurred, tmp_path_factory):
    """A run that brings it back to its teacher."""
    out = tmp_path_factory.mktemp("distill")
    flags = ["--model", str(blurred), "--set", "train.teacher=embedded", "--out", str(out)]
    assert train_main([*RUN, *flags]) == 0
    return out / "run-001"


def test_rounds_bring_the_student_nearer_to_its_teacher(whole):
    lines, card = RunFolder(whole).read_metrics(), RunFolder(whole).read_card()
    kl = [line["teacher_kl"] for line in lines]
    assert len(kl) == 3 and kl[0] > 0.5 and kl[2] < kl[1] < kl[0] / 2
    assert all(0 < line["teacher_share"] < 1 for line in lines)
    scored = sum(line["cost"]["scored_tokens"] for line in lines)
    assert card["search_cost"]["scored_tokens"] == scored
    assert "KL to the teacher" in (whole / "report.html").read_text()


# -- teachers --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    made = CompletionServer()
    yield made
    made.close()


def test_a_server_scores_as_the_same_weights_here(server):
    config = settings(server.url, "engine.max_context=1000")
    student = load_student(config)
    far, near = load_teacher(student, config), load_teacher(student, settings("embedded"))
    prompt = student.prompt_ids("Tom has 3 bags. How many?")
    pair = [(prompt, tuple(student.encode("3 * 4 = 12\n"))), (prompt, (student.engine.eos_id,))]
    scores = [asyncio.run(engine.score(pair)) for engine in (far, near)]
    for one, other in zip(*scores, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    far.close()


def refused(teacher, said):
    config = settings(teacher)
    with pytest.raises(ConfigError, match=rf"^train\.teacher is .*{said}.*$"):
        load_teacher(load_student(config), config)


@pytest.mark.parametrize("broken", ["scores", "tokenizer", "gone"])
def test_a_server_that_cannot_teach_is_refused(server, broken, monkeypatch):
    answer = server.post

    def silent(path, sent):
        status, said = answer(path, sent)
        if broken == "tokenizer" and path == "/tokenize":
            said["tokens"] = [*said["tokens"], 1]
        if broken == "scores" and path == "/v1/completions":
            for choice in said["choices"]:
                choice.pop("prompt_logprobs", None)
        return status, said

    monkeypatch.setattr(server, "post", silent)
    url = "http://127.0.0.1:9/v1" if broken == "gone" else server.url
    refused(url, "http.*: name a vLLM server")


def test_a_teacher_of_other_tokens_or_of_a_shorter_context_is_refused(tmp_path):
    """One that knows all of the student's tokens, and more, may teach."""
    folder = tiny_chat(tmp_path / "other")
    student = load_student(settings(folder))
    assert load_teacher(student, settings(folder)).vocabulary > student.engine.vocabulary
    shape, tokenizer = folder / "config.json", folder / "tokenizer.json"
    told = read_json(shape)
    write_json(shape, told | {"max_position_embeddings": 512})
    refused(folder, r" 512 .*engine\.max_context=512")
    write_json(shape, told)
    told = read_json(tokenizer)
    words = told["model"]["vocab"]
    one, another = [*words][-2:]
    words[one], words[another] = words[another], words[one]
    write_json(tokenizer, told)
    refused(folder, "other.*vocabulary")
