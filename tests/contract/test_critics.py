"""Critics: packed forwards, figures, data, training and folders; public PRMs against plain
transformers, their loss against TRL's.
"""

import asyncio
import itertools
import json
import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import save_file
from scripted import run
from support import EOS, VOCABULARY, tiny_engine, tiny_llama
from tables import read_jsonl, write_jsonl
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Model,
)
from trl import RewardConfig, RewardTrainer
from trl.trainer.reward_trainer import DataCollatorForPreference

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import StudentModel
from alphazero_llm_trainer.engine.protocol import UNJUDGED
from alphazero_llm_trainer.errors import (
    CheckpointError,
    DataError,
    EngineError,
)
from alphazero_llm_trainer.eval import critic_figures as metrics
from alphazero_llm_trainer.learning.critic_network import CriticNetwork, save_critic
from alphazero_llm_trainer.learning.learner import Learner, RateSchedule
from alphazero_llm_trainer.learning.models import MemoryOptions, make_trainable
from alphazero_llm_trainer.learning.packing import Work, plan_rows
from alphazero_llm_trainer.learning.scoring import Scores
from alphazero_llm_trainer.learning.size import used_questions
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.policy.adapters import model_fingerprint
from alphazero_llm_trainer.policy.critic import CriticVerifier, load_critic, load_prm
from alphazero_llm_trainer.policy.public_prm import QWEN_SYSTEM
from alphazero_llm_trainer.policy.states import States
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.runs import critic_data
from alphazero_llm_trainer.runs.critic_data import (
    Example,
    Question,
    State,
    example_of,
    pair_rows,
    read_questions,
    split_by_question,
    stack_examples,
    state_rows,
    with_step_labels,
)
from alphazero_llm_trainer.runs.critic_run import (
    HeldOut,
    Outcomes,
    PairOutcomes,
    fit_platt,
    mean_cross_entropy,
    new_critic,
    train_critic,
)
from alphazero_llm_trainer.runs.fit import fit, plan_updates
from alphazero_llm_trainer.tree.arena import ROOT, Tree
from alphazero_llm_trainer.types import Problem, RewardParts, Step

PROMPT = (7, 8, 9)
SMALL = {"epochs": 6, "learning_rate": 5e-3, "batch_size": 16}


def a_student(seed=0, adapter="full", quantization="none"):
    """A tiny Llama as a student whose prompts are numbers: question "q 3 4" is the tokens 3 4."""
    model = tiny_llama(seed)
    spec = StudentModel.model_validate(
        {"path": "nowhere", "adapter": adapter, "quantization": quantization}
    )

    class Numbers(Student):
        def prompt_ids(self, question):
            return tuple(int(word) for word in question.split()[1:])

    tokenizer = load_student(load_config(overrides=["student=embedded"])).tokenizer
    return Numbers("tiny", model, tokenizer, tiny_engine(model), spec)


@pytest.fixture(autouse=True)
def pairs_of_two(monkeypatch):
    """The trees here have eight responses: two behind a step make it one of a pair."""
    monkeypatch.setattr(critic_data, "LEAST_OUTCOMES", 2)


def settings(**critic):
    """A configuration for the tiny student; `critic` is `train.critic` and keys of the
    optimiser.
    """
    optimizer = SMALL | {key: critic.pop(key) for key in list(critic) if key in SMALL}
    train = {"optimizer": optimizer, "evaluate_every": critic.pop("evaluate_every", 10)}
    train["critic"] = critic
    engine = {"max_context": 64, "cache_tokens": 2000}
    return load_config(
        overrides=["student=embedded", {"train": train, "engine": engine}], recipe="critic.yaml"
    )


# -- states in rows --------------------------------------------------------------------------------


def an_example(states, prompt=PROMPT):
    """From (target, weight) of each state."""
    return Example(
        prompt, {ids: State(target, weight, target) for ids, (target, weight) in states.items()}
    )


def test_each_state_is_a_target_once():
    states = {
        (): (0.5, 8.0), (1, 2): (0.25, 4.0), (1, 3): (0.75, 4.0), (1, 2, 4): (1.0, 1.0),
        (1, 2, 4, 5): (0.0, 0.0),
    }  # fmt: skip
    rows, places = state_rows(an_example(states))
    assert [row.completion_ids for row in rows] == [(1, 3, 9), (1, 2, 4, 5, 9)]
    assert [row.targets for row in rows] == [(0.0, 0.0, 0.75), (0.5, 0.0, 0.25, 1.0, 0.0)]
    for row, shares in zip(rows, [(0, 0, 4), (8, 0, 4, 1, 0)], strict=True):
        assert row.value_weights == pytest.approx([share / 17 for share in shares])
    assert all(places[ids][1] == len(ids) for ids in states)
    assert (places[1, 3], places[()]) == ((0, 2), (1, 0))


def test_neither_a_bound_of_the_sequences_nor_parts_change_the_loss_or_its_gradient(monkeypatch):
    rng, critic = Random(41), CriticNetwork(tiny_llama(), extra_layers=1, start=0.3)
    torch.nn.init.normal_(critic.score.weight)
    rows = []
    for prompt in (PROMPT, (20, 21)):
        paths = [tuple(rng.choices((5, 6), k=rng.randrange(1, 40))) for _ in range(12)]
        rows += state_rows(an_example({ids: (rng.random(), 1.0) for ids in paths}, prompt))[0]
    parameters = [p for p in critic.parameters() if p.requires_grad]
    objective = Outcomes(critic)
    totals = torch.tensor(objective.totals(rows))

    def update(pair, size):
        """The longest sequence, and the loss with its gradient in parts of `size` rows, where pairs
        of tokens cost so much.
        """
        work, loss = Work(1.0, pair), 0.0
        monkeypatch.setattr(Work, "of", classmethod(lambda cls, config: work))
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            values = critic(part)
            scores = Scores(torch.zeros_like(values), values, values=values)
            loss += objective.loss(part, scores, totals)[0]
        return max(forward.width for forward in plan_rows(rows, work).forwards), [
            loss.detach(), *torch.autograd.grad(loss, parameters),
        ]  # fmt: skip

    long, whole = update(0.0, len(rows))
    for pair, size in ((0.005, len(rows)), (1e9, len(rows)), (0.0, 5)):
        short, found = update(pair, size)
        assert not pair or short < 0.8 * long
        for other, expected in zip(found, whole, strict=True):
            torch.testing.assert_close(other, expected, rtol=0, atol=1e-5)


# -- losses and calibration ------------------------------------------------------------------------


def test_the_loss_of_a_value_is_the_hand_written_sum():
    columns = (0.3, -1.0, 9.0), (0.25, 1.0, 0.0), (2.0, 1.0, 0.0)
    logits, targets, weights = map(torch.tensor, columns)
    p = [1 / (1 + math.exp(-x)) for x in (0.3, -1.0)]
    expected = (2 * -(0.25 * math.log(p[0]) + 0.75 * math.log(1 - p[0])) - math.log(p[1])) / 3
    assert float(mean_cross_entropy(logits, targets, weights)) == pytest.approx(expected, abs=1e-6)
    assert float(mean_cross_entropy(logits, targets, weights * 0)) == 0.0


def test_platt_reads_off_the_scale_and_shift_that_made_the_outcomes():
    logits = torch.linspace(-3, 3, 400)
    scale, shift = fit_platt(logits, torch.sigmoid(0.5 * logits - 0.7), torch.ones(400))
    assert (scale, shift) == (pytest.approx(0.5, abs=1e-3), pytest.approx(-0.7, abs=1e-3))
    # Never turns the order round.
    assert fit_platt(logits, torch.sigmoid(-logits), torch.ones(400)) == (1.0, 0.0)


# -- figures ---------------------------------------------------------------------------------------


def states_of(entries, question=None):
    """States before the end from (share of right outcomes, count), each of a question of its own by
    default.
    """
    target, count = map(np.asarray, zip(*entries, strict=True))
    none = np.zeros(target.size)
    numbers = np.arange(target.size) if question is None else question
    return States(target, count, target, none, none.astype(bool), numbers)


def random_states(seed):
    rng = Random(seed)
    counts = [rng.randrange(1, 5) for _ in range(40)]
    states = states_of([(rng.randrange(count + 1) / count, count) for count in counts])
    return np.asarray([rng.randrange(6) / 6 + 0.05 for _ in counts]), states


def outcomes_of(states):
    """(state, outcome) of every single response."""
    single = []
    for i, (target, count) in enumerate(zip(states.target, states.weight, strict=True)):
        right = round(target * count)
        single += [(i, 1.0)] * right + [(i, 0.0)] * (count - right)
    return single


@pytest.mark.parametrize("seed", range(3))
def test_auc_agrees_with_enumeration(seed):
    value, states = random_states(seed)
    single = outcomes_of(states)
    wins = total = 0.0
    for (i, right), (j, wrong) in itertools.product(single, single):
        if right and not wrong:
            # Each question, which has one state here, counts the same.
            share = 1 / states.weight[i] / states.weight[j]
            wins += share * ((value[i] > value[j]) + 0.5 * (value[i] == value[j]))
            total += share
    assert metrics.auc(value, states, draws=0).low == 0.0
    ranked = metrics.auc(value, states)
    assert (
        ranked.value == pytest.approx(wins / total)
        and 0 < ranked.low < ranked.value < ranked.high < 1
    )


def test_intervals_come_from_questions_not_from_states_or_pairs():
    # 4 questions of 500 equal pairs: the interval must be that of 4 coin flips, not of 2,000.
    question, states = np.arange(2000) // 500, states_of([(0.0, 1), (1.0, 1)])
    pairs = metrics.StatePairs(question % 2, 1 - question % 2, question)
    interval = metrics.pair_accuracy(np.array([0.0, 1.0]), states, pairs)["pair accuracy"]
    assert interval.value == 0.5 and interval.low <= 0.01 and interval.high >= 0.99
    # Perfect order on few questions says nothing, however many states or pairs they have; nor do
    # outcomes that are all alike.
    for questions, low, gain in ((1, 0.0, -1.0), (9, 0.0, -1.0), (10, 1.0, 0.5)):
        question = np.arange(20 * questions) // 20
        pairs = metrics.StatePairs(0 * question, 0 * question + 1, question)
        states.logprob[:] = -1.0
        figures = metrics.pair_accuracy(np.array([1.0, 0.0]), states, pairs)
        assert [figure.low for figure in figures.values()] == [low, min(low, 0.5), gain]
        ordered = states_of([(at % 2, 3) for at in range(question.size)], question)
        ranked = metrics.auc(ordered.target, ordered)
        assert ranked.value == 1.0 and (ranked.low > metrics.CHANCE) is bool(low)
    assert math.isnan(metrics.auc(np.zeros(20), states_of([(1.0, 1)] * 20)).value)


def test_pairs_are_ranked_against_the_log_probability():
    states = states_of([(1.0, 4), (0.5, 4), (0.0, 1), (1.0, 3), (0.0, 3)])
    columns = [0, 0, 1, 3], [1, 2, 2, 4], [0, 0, 0, 1]
    pairs = metrics.StatePairs(*map(np.array, columns))
    states.logprob[:] = [-1.0, -2.0, -0.5, -3.0, -3.0]
    figures = metrics.pair_accuracy(np.array([0.9, 0.2, 0.2, 0.1, 0.4]), states, pairs)
    assert {name: figure.value for name, figure in figures.items()} == pytest.approx({
        "pair accuracy": (1 + 1 + 0.5 + 0) / 4,
        "pair accuracy, log-probability": (1 + 0 + 0 + 0.5) / 4,
        "pair accuracy over log-probability": (0 + 1 + 0.5 - 0.5) / 4,
    })  # fmt: skip
    states.logprob[4] = math.nan  # a pair that nobody sampled
    assert list(metrics.pair_accuracy(np.zeros(5), states, pairs)) == ["pair accuracy"]


def test_the_blend_minimises_the_error_against_another_outcome():
    value, states = random_states(7)

    def error(weight):
        total = 0.0
        for i in range(value.size):
            singles = [o for j, o in outcomes_of(states) if j == i]
            errors = [
                ((1 - weight) * value[i] + weight * one - other) ** 2
                for one, other in itertools.permutations(singles, 2)
            ]
            total += len(singles) * float(np.mean(errors)) if errors else 0.0
        return total

    best = metrics.fit_blend(value, states)
    assert 0 < best < 1 and error(best) <= min(map(error, np.linspace(0, 1, 101))) + 1e-9
    truth = states_of([(float(i % 2), 5) for i in range(20)])
    assert metrics.fit_blend(truth.target, truth) == 0.0  # V is the outcome: a rollout adds nothing
    # V knows nothing, one rollout everything.
    assert metrics.fit_blend(np.full(20, 0.5), truth) == 1.0
    assert math.isnan(metrics.fit_blend(np.zeros(1), states_of([(1.0, 1)])))
    # Graded outcomes that are equal at each state: a rollout predicts the next one perfectly.
    graded = states_of([(0.2, 4), (0.6, 4), (0.9, 4)])
    graded = replace(graded, square=graded.target**2)
    assert metrics.fit_blend(np.full(3, 0.5), graded) == pytest.approx(1.0)


# -- data ------------------------------------------------------------------------------------------


def a_tree(rng):
    """A tree of four one-token steps, of which the even ones are right, each with two second
    steps.
    """
    tree = Tree()
    for token in rng.sample(range(5, 13), 4):
        first = tree.attach(ROOT, Step((token,), (-1.0,), f"{token}\n"))
        for last in rng.sample(range(5, VOCABULARY), 2):
            leaf = tree.attach(first, Step((last, EOS), (-0.5, -0.1), f"{last}."))
            tree.finish(leaf, "answer", RewardParts(0.5, 1.0 - token % 2))
            tree.backup(leaf, 1.0 - token % 2)
    return tree


def write_journal(path, count, seed=1):
    """A journal with one tree each of so many questions."""
    rng, rows = Random(seed), []
    for number in range(count):
        problem = {"question": f"q {number % 50 + 5} {number // 50 + 5}"}
        rows.append({"key": str(number), "problem": problem, "tree": a_tree(rng).to_dict()})
    write_jsonl(path, rows)
    return path


def test_the_split_goes_by_question_and_never_moves():
    questions = [Question(f"q {number}") for number in range(400)]
    train, validation, test = split_by_question(questions)
    assert 20 < len(validation) < 60 and 40 < len(test) < 80
    assert not {q.text for q in train} & {q.text for q in [*validation, *test]}
    fewer = split_by_question(questions[:200])[1]
    assert [q.text for q in fewer] == [q.text for q in validation if q in questions[:200]]
    with pytest.raises(DataError, match="1, 0, 0 are left for training"):
        split_by_question(questions[:1])


def test_journals_are_read_by_question(tmp_path):
    path = write_journal(tmp_path / "journal.jsonl", 2)
    first, second = read_jsonl(path)
    none = {"key": "d", "problem": {"question": "q"}, "tree": Tree().to_dict()}
    write_jsonl(path, [first, second, first | {"key": "c"}, none])
    questions = read_questions([path], VOCABULARY)
    found = [[tree.to_dict() for tree in question.trees()] for question in questions]
    assert json.loads(json.dumps(found)) == [[first["tree"]] * 2, [second["tree"]]]
    with pytest.raises(DataError, match="this student has 5"):
        read_questions([path], 5)
    write_jsonl(path, [{"key": "x"}])
    with pytest.raises(DataError, match="holds no graded trees"):
        read_questions([path], VOCABULARY)


def test_a_tree_gives_states_and_pairs_of_siblings(tmp_path):
    student, config = a_student(), settings().train.critic
    questions = read_questions([write_journal(tmp_path / "j.jsonl", 3)], VOCABULARY)
    states, pairs = stack_examples(
        [example_of(question, student, config) for question in questions]
    )
    assert states.question.tolist() == [0] * 13 + [1] * 13 + [2] * 13
    assert states.logprob[:3] == pytest.approx([np.nan, -1.0, -0.6], nan_ok=True)
    assert states.final[:3].tolist() == [False, False, True] and states.weight[0] == 8
    gaps = states.target[pairs.better] - states.target[pairs.worse]
    assert (gaps == 1.0).all() and len(gaps) > 3
    for question in questions:
        rows, places = state_rows(example_of(question, student, config, every_token=True))
        assert len(rows) == 8 and len(places) == 21  # every token, and the prompt's last
        assert sum(sum(row.value_weights) for row in rows) == pytest.approx(1.0)


def test_a_step_is_right_where_any_response_after_it_was():
    example = an_example({(): (0.5, 9.0), (1,): (0.2, 5.0), (2,): (0.0, 3.0), (3,): (0.0, 1.0)})
    example.add((4,), State(0.3, 2.0, 0.1))  # outcomes between wrong and right
    labels = with_step_labels(example).states
    assert {ids: (state.target, state.weight) for ids, state in labels.items()} == {
        (1,): (1.0, 1.0), (2,): (0.0, 1.0), (3,): (0.0, 0.0), (4,): (0.3, 1.0)
    }  # fmt: skip


def test_trees_of_other_splits_are_not_learned_from(tmp_path, capsys):
    journal = write_journal(tmp_path / "journal.jsonl", 1)
    [record] = read_jsonl(journal)
    write_jsonl(journal, [record, record | {"key": "b", "split": "validation"}])
    assert main(f"value --model embedded --data {journal} --out {tmp_path / 'v'}".split()) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert str(journal) in line and "validation split" in line


# -- training and folders --------------------------------------------------------------------------


def trained(kind, student, config, folder, count=60):
    """A critic of so many questions; what training writes is in `folder`/out."""
    trees = write_journal(folder / "trees.jsonl", count)
    return train_critic(kind, student, config, [trees], folder / "out", Progress(quiet=True))


STEPS = [Step((20, 21), (), "a\n"), Step((22, EOS), (), "b")]


def judged(verifier, prompt=PROMPT, steps=STEPS, question="q"):
    return run(lambda: verifier(Problem("p", question, "s"), prompt, steps))


def trained_values(journal, student, config, network):
    """Prompt and response of each state of a journal's first question, and their values in
    training."""
    example = example_of(read_questions([journal], VOCABULARY)[0], student, config.train.critic)
    expected = HeldOut([example], network, False).logits().sigmoid().tolist()
    return [example.prompt_ids + ids for ids in example.states], expected


def refused_by_others(out, adapter, quantization, config, kind, reason):
    with pytest.raises(CheckpointError, match=reason):
        load_critic(out, a_student(5, adapter, quantization), config, kind)


@pytest.mark.parametrize(
    "kind, adapter, quantization",
    [("value", "full", "none"), ("prm", "full", "none"), ("value", "lora", "nf4")],
)
def test_a_critic_learns_and_its_folder_says_what_training_saw(
    kind, adapter, quantization, tmp_path
):
    student, config = a_student(adapter=adapter, quantization=quantization), settings()
    before, out = model_fingerprint(student.model), tmp_path / "out"
    network, card = trained(kind, student, config, tmp_path, 120)
    assert model_fingerprint(student.model) == before  # the policy itself is left alone
    [curve] = out.glob("*")  # no stray checkpoints
    assert min(line["held_out_loss"] for line in read_jsonl(curve)) == card["best"]["held_out_loss"]
    assert card["test"]["pair accuracy"][0] > 0.8 and card["test"]["AUC"][0] > 0.7
    assert card["earned"]
    save_critic(out, network, card, student, config)
    critic = load_critic(out, student, config, kind)
    assert critic.rollout_weight == card["rollout_weight"]
    states, expected = trained_values(tmp_path / "trees.jsonl", student, config, network)

    async def ask():
        return await asyncio.gather(*map(critic, states))

    assert run(ask) == pytest.approx(expected, abs=2e-5)
    verifier = CriticVerifier(critic, kind)
    found = judged(verifier)
    assert found.total == (min(found.steps) if kind == "prm" else found.steps[-1])
    scored = verifier.scored_tokens
    assert len(found.steps) == 2 and judged(verifier) == found and verifier.scored_tokens == scored
    with pytest.raises(CheckpointError, match=r"is a (PRM|value network): name a folder that"):
        load_critic(out, student, config, "value" if kind == "prm" else "prm")
    if adapter == "full":
        # A whole network serves other policies too.
        load_critic(out, a_student(seed=5), config, kind)
    else:
        refused_by_others(out, adapter, quantization, config, kind, "trained on other weights")


@pytest.mark.parametrize("adapter, quantization", [("full", "none"), ("lora", "nf4")])
def test_a_head_reads_the_policys_own_states_and_costs_nothing(adapter, quantization, tmp_path):
    student, config = a_student(adapter=adapter, quantization=quantization), settings()
    out, reads = tmp_path / "out", "reads the states of the student"

    def saved(folder):
        network = CriticNetwork(student.model, head=True)
        torch.nn.init.normal_(network.score.weight)
        save_critic(folder, network, {"kind": "value", "rollout_weight": 0.0}, student, config)
        return network, load_critic(folder, student, config, "value")

    network, critic = saved(out)
    assert {file.name for file in out.iterdir()} == {"critic.json", "critic.safetensors"}
    assert critic.engine is student.engine and not critic.computes
    journal = write_journal(tmp_path / "trees.jsonl", 1)
    states, expected = trained_values(journal, student, config, network)
    assert run(lambda: student.engine.values(states)) == pytest.approx(expected, abs=1e-4)
    verifier = CriticVerifier(critic, "value")
    found = judged(verifier)
    assert found.values == found.steps and not verifier.computes and not verifier.scored_tokens
    _, other = saved(tmp_path / "b")
    assert other.card["files"] != critic.card["files"]
    with pytest.raises(EngineError, match="another value head by now"):
        judged(verifier)
    refused_by_others(out, adapter, quantization, config, "value", reads)
    if adapter == "lora":  # the same base under an adapter of the policy's is another student
        make_trainable(student.model, student.spec, "lora")
        with pytest.raises(CheckpointError, match=reads):
            load_critic(out, student, config, "value")


@pytest.mark.parametrize("micro_batch", [1, 3, 4, None])
def test_a_prm_s_loss_and_its_gradient_are_trl_s(micro_batch, tmp_path):
    student, config = a_student(), settings()
    critic, end, unused = new_critic(student, config, "prm"), student.tokenizer.pad_token_id, 30
    torch.nn.init.normal_(critic.score.weight)
    pairs = [((5, end), (6,)), ((5, 11), (5, 10)), ((5, 12), (7, 8, 9))]
    example = an_example({ids: (0.5, 1.0) for pair in pairs for ids in pair})
    for pair in pairs:
        example.prefer(*pair, 1.0)
    rows, memory = pair_rows(example, 16), MemoryOptions(micro_batch=micro_batch)
    rates = RateSchedule(1e-3, 0, 9)
    learner = Learner(critic, PairOutcomes(critic), memory, rates, config.train.optimizer)
    learner.compute([row for pair in rows for row in pair])
    loss = learner.sums["loss"].item()
    gradient = {name: p.grad.clone() for name, p in critic.named_parameters() if p.requires_grad}

    shape = LlamaConfig(**critic.config.to_dict() | {"num_labels": 1, "pad_token_id": unused})
    model = LlamaForSequenceClassification(shape)
    model.model, model.score = critic.backbone, critic.score
    arguments = RewardConfig(str(tmp_path), use_cpu=True, max_length=None, report_to="none")
    names = "chosen_ids", "rejected_ids"
    data = [dict(zip(names, [[*PROMPT, *ids] for ids in pair], strict=True)) for pair in pairs]
    collate = DataCollatorForPreference(unused)
    trainer = RewardTrainer(
        model, arguments, collate, Dataset.from_list(data), processing_class=student.tokenizer
    )
    model.config.pad_token_id = unused
    model.zero_grad()
    of_trl = trainer.compute_loss(model, collate(data))
    of_trl.backward()
    assert loss == pytest.approx(of_trl.item(), abs=1e-5)
    for name, parameter in critic.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad, rtol=1e-3, atol=1e-5)


def test_parts_without_a_pair_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(critic_data, "LEAST_OUTCOMES", 50)
    student, config = a_student(), settings()
    with pytest.raises(DataError, match=r"train\.critic\.margin"):
        trained("prm", student, config, tmp_path)


def test_training_stops_when_measurements_gain_nothing_and_keeps_the_best():
    critic = new_critic(a_student(), settings(), "value")
    groups = [state_rows(an_example({(token,): (1.0, 1.0)}))[0] for token in range(5, 21)]
    train = plan_updates(settings(epochs=99, evaluate_every=2), len(groups), 0.01)
    losses, seen = [0.7, 0.5, 0.6, 0.55, 0.9, 0.6, 0.4], []

    def measure(course):
        seen.append(critic.score.weight.detach().clone())
        return {"step": len(course.losses), "loss": losses[len(seen) - 1]}

    course = fit(
        critic, Outcomes(critic), groups, train, 0, measure=measure, patience=4,
        goal=lambda line: -line["loss"],
    )  # fmt: skip
    assert [line["step"] for line in course.lines] == [2, 4, 6, 8, 10, 12]
    assert course.line["loss"] == 0.5 and torch.equal(critic.score.weight, seen[1])


def test_a_broken_folder_is_refused(student, tmp_path):
    config, numbers = public(None), tmp_path / "critic.safetensors"
    facts = {"kind": "prm", "base": "", "rollout_weight": 1.0, "vocabulary": 3}
    save_file({"weight": torch.zeros(8), "bias": torch.zeros(1)}, numbers)
    for card, message in (
        (None, r"has no critic\.json"),
        ({}, "broken"),
        (facts | {"files": {"absent": "0"}}, "lacks absent"),
        (facts | {"files": {numbers.name: "0"}}, r"truncated or changed critic\.safetensors"),
        (facts | {"files": {}}, "is of width 8 for 3 tokens, student embedded has"),
    ):
        if card is not None:
            (tmp_path / "critic.json").write_text(json.dumps(card))
        with pytest.raises(CheckpointError, match=message):
            load_prm(tmp_path, student, config)


@pytest.mark.parametrize(
    "overrides, used",
    [
        ([], 500 + 4800),  # warm-up's demonstrations, then the run's questions
        (["train.demonstration_share=0"], 4800),
        (["problems.source=gsm8k"], 4800),
        # `sft` may have taken the first 500.
        (["problems.source=gsm8k", "train.num_examples=100"], 500),
        (["problems.source=gsm8k", "train.demonstration_share=0.1"], 500 + 4800),
    ],
)
def test_what_training_takes(overrides, used):
    assert used_questions(load_config(overrides=overrides)) == used


WORDS = ["<pad>", "<eos>", "<unk>", "+", "-", "ки", "Step", "1:", "2:", "3:", "Ana", "has", "four",
         "apples", "so", "eight", "user", "assistant", "system", "end"]  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} end {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
QUESTION, LINES = "Ana has four apples", ["four apples", "so eight", "eight"]
PRM_SHAPE = {
    "vocab_size": len(WORDS) + 1, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "initializer_range": 0.4, "bos_token_id": None,
    "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def public(name):
    return load_config(None, [{"student": "embedded", "train": {"critic": {"format": name}}}])


def a_tokenizer(folder, core=None, pre_tokenizer=None):
    """Of `core`; by default words."""
    words = {word: i for i, word in enumerate(WORDS)}
    core = Tokenizer(core or models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizer or pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>",
        additional_special_tokens=["<extra_0>"]
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def a_byte_tokenizer(folder):
    """Bytes as tokens: the folder of a Qwen2 model is read with Qwen2's own tokenizer class."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = models.BPE(vocab=letters, merges=[])
    return a_tokenizer(folder, core, pre_tokenizers.ByteLevel(add_prefix_space=False))


def a_causal_model(folder):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**PRM_SHAPE)).eval()
    model.save_pretrained(folder)
    return model


PUBLIC_STEPS = [Step((), (), line + "\n") for line in LINES]


@torch.inference_mode()
def test_rlhflow_is_read_where_the_assistant_answers(student, tmp_path):
    tokenizer, model = a_tokenizer(tmp_path), a_causal_model(tmp_path)
    verifier = load_prm(tmp_path, student, public("rlhflow"))
    found = judged(verifier, (), PUBLIC_STEPS, QUESTION)
    # As in the project's evaluation script, where `-3` is the token before the assistant's answer
    # and its end.
    candidates = [tokenizer.encode("+")[-1], tokenizer.encode("-")[-1]]
    conversation, expected = [], []
    for line in (f"{QUESTION} {LINES[0]}", *LINES[1:]):
        conversation.append({"content": line, "role": "user"})
        conversation.append({"content": "+", "role": "assistant"})
        text = tokenizer.apply_chat_template(conversation, tokenize=False)
        logits = model(torch.tensor([tokenizer.encode(text)])).logits
        expected.append(float(logits[0, -3, candidates].softmax(dim=-1)[0]))
    assert list(found.steps) == pytest.approx(expected, abs=1e-5)
    computed = verifier.scored_tokens
    assert judged(verifier, (), PUBLIC_STEPS, QUESTION) == found
    assert verifier.scored_tokens == computed


@pytest.mark.parametrize("deep", [False, True])
def test_qwen_prm_is_read_at_its_separators(deep, student, tmp_path):
    tokenizer = a_byte_tokenizer(tmp_path)
    torch.manual_seed(0)
    backbone = Qwen2Model(Qwen2Config(**{**PRM_SHAPE, "vocab_size": len(tokenizer)})).eval()
    first, last = torch.nn.Linear(32, 32), torch.nn.Linear(32, 2)
    layers = {"model": backbone} | (
        {"score.0": first, "score.2": last} if deep else {"score": last}
    )
    backbone.save_pretrained(tmp_path)
    tensors = {
        f"{name}.{of}": tensor.detach().clone()
        for name, layer in layers.items()
        for of, tensor in layer.state_dict().items()
    }
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    verifier = load_prm(tmp_path, student, public("qwen-prm"))
    found = judged(verifier, (), PUBLIC_STEPS, QUESTION)
    # As on the model's card.
    answer = "<extra_0>".join([*LINES, ""])
    turns = {"system": QWEN_SYSTEM, "user": QUESTION, "assistant": answer}
    messages = [{"role": role, "content": text} for role, text in turns.items()]
    ids = torch.tensor([tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False))])
    with torch.inference_mode():
        states = backbone(ids).last_hidden_state
        logits = last(first(states).relu()) if deep else last(states)
    at = ids == tokenizer.encode("<extra_0>")[0]
    expected = logits.softmax(dim=-1)[at][:, 1].tolist()
    assert len(set(expected)) == 3 and list(found.steps) == pytest.approx(expected, abs=1e-5)
    assert verifier.scored_tokens == int(at[0].nonzero().max()) + 1
    assert judged(verifier, (), []).total == UNJUDGED


def test_a_folder_of_another_kind_is_refused(student, tmp_path):
    with pytest.raises(CheckpointError, match="can't be read as rlhflow"):
        load_prm(tmp_path, student, public("rlhflow"))
    a_tokenizer(tmp_path)
    a_causal_model(tmp_path)
    with pytest.raises(CheckpointError, match="no score head"):
        load_prm(tmp_path, student, public("qwen-prm"))


OWN = """
def short(student):
    return lambda states: [1 / len(ids) for ids in states]


def high(student):
    return lambda states: [2.0 for _ in states]
"""


def test_a_value_of_one_s_own_guides_a_search(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    value = f"{tmp_path / 'own.py'}:"
    words = "search -q --json --simulations 4 --value".split()
    assert main([*words, f"{value}short"]) == 0
    tree = json.loads(capsys.readouterr().out)["tree"]
    values = {1 / v for v in tree["V"] if v is not None and 0 < v < 1}
    assert values and all(abs(length - round(length)) < 1e-6 for length in values)
    for name, said in (("high", "in [0, 1] for each"), ("none", "has no none")):
        assert main([*words, f"{value}{name}"]) == 2
        assert said in capsys.readouterr().err
