"""Process reward models: steps and pairs, the scorer against plain forwards, training, calibration, the folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from alphazero_llm_trainer.config.load import Config, load_config
from alphazero_llm_trainer.config.train import PrmConfig
from alphazero_llm_trainer.errors import CheckpointError, DataError
from alphazero_llm_trainer.eval import step_figures as metrics
from alphazero_llm_trainer.mcts.tree import ROOT, Tree
from alphazero_llm_trainer.policy.prm_verifier import FOLDER, load_prm, squash, total_of, unsquash
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.problems.embedded import build
from alphazero_llm_trainer.problems.scripted_teacher import spoiled
from alphazero_llm_trainer.training import prm_data, prm_run
from alphazero_llm_trainer.training.judge import check
from alphazero_llm_trainer.training.prm import (
    FLOOR,
    LabelledStep,
    PrmTrainer,
    StepCollator,
    StepPair,
    StepRow,
    StepScorer,
    balanced,
    new_scorer,
    pack_steps,
    pair_accuracy,
    pair_loss,
    step_scores,
    train_scorer,
)
from alphazero_llm_trainer.training.prm_trl import pair_rows, sequence_model, train_reward
from alphazero_llm_trainer.training.value_run import Question
from alphazero_llm_trainer.types import Problem, RewardParts, Step
from tests.support import VOCABULARY, library_scores, run, tiny_llama

PROMPT = (7, 8, 9)
QUICK = {"epochs": 8, "evaluate_every": 10, "warmup_steps": 2, "batch_size": 16, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(None, [{"student": "embedded"}])


@pytest.fixture(scope="module")
def student(config: Config) -> Student:
    return load_student(config)


def steps_of(*triples: tuple[tuple[int, ...], tuple[int, ...], float]) -> list[LabelledStep]:
    return [LabelledStep(prefix, step, target) for prefix, step, target in triples]


def a_row(name: str = "q") -> StepRow:
    steps = steps_of(((), (1, 2), 1.0), ((), (1, 3, 2), 0.0), ((1, 2), (5, 2), 1.0), ((1, 2), (6,), 0.25))
    return pack_steps(name, PROMPT, steps, [StepPair((), (1, 2), (1, 3, 2)), StepPair((1, 2), (5, 2), (6,), 0.75, 1)])


# -- rows --------------------------------------------------------------------------------------------------------------


def test_a_row_knows_where_steps_begin_and_end_and_what_predicts_a_token() -> None:
    row = a_row()
    assert row.token_ids == (7, 8, 9, 1, 2, 5, 2, 6, 3, 2)
    assert row.parents == (0, 0, 1, 2, 3, 4, 5, 4, 3, 8)
    assert row.starts == (2, 2, 4, 4) and row.states == (4, 9, 6, 7)
    assert row.labels == (1.0, 0.0, 1.0, 0.25)
    assert row.pairs == ((0, 1, 1.0), (2, 3, 0.75))


def test_a_step_met_twice_is_one_with_the_mean_label() -> None:
    steps = [LabelledStep((), (1,), 1.0, 3.0), LabelledStep((), (1,), 0.0, 1.0), LabelledStep((), (), 1.0)]
    row = pack_steps("q", PROMPT, steps, [StepPair((), (1,), (2,))])
    assert row.labels == (0.75, 0.0) and row.label_weights == (4.0, 0.0)


def test_pairs_are_balanced_over_depths_and_the_widest_margins_stay() -> None:
    pairs = [StepPair((), (i,), (0,), 0.5 + i / 100, 0) for i in range(1, 9)] + [StepPair((1,), (2,), (3,), 0.5, 1)]
    kept = balanced(pairs, 3)
    assert [(pair.depth, pair.chosen_ids) for pair in kept] == [(0, (8,)), (1, (2,)), (0, (7,))]
    assert len(balanced(pairs, 99)) == 9 and balanced([], 4) == []


# -- the scorer --------------------------------------------------------------------------------------------------------


def test_packed_scores_equal_plain_forwards() -> None:
    policy = tiny_llama()
    scorer = StepScorer(tiny_llama(), head=True, logprob=True)
    assert scorer.head is not None
    torch.nn.init.normal_(scorer.head.weight)
    with torch.no_grad():
        scorer.mix.fill_(0.5)
        scorer.bias.fill_(0.25)
    row, other = a_row(), pack_steps("o", (20,), steps_of(((), (30,), 1.0)), [])
    both, _ = step_scores(scorer, [row, other], 2)
    for (prefix, step), (score, logprob) in zip(
        [((), (1, 2)), ((), (1, 3, 2)), ((1, 2), (5, 2)), ((1, 2), (6,))], both.tolist(), strict=True
    ):
        expected = math.fsum(library_scores(policy, PROMPT + prefix, step))
        assert logprob == pytest.approx(expected, abs=1e-4)
        with torch.no_grad():
            state = policy.model(input_ids=torch.tensor([[*PROMPT, *prefix, *step]])).last_hidden_state[0, -1]
            head = float(scorer.head.weight[0] @ state)
        assert score == pytest.approx(0.5 * max(expected, FLOOR) + head + 0.25, abs=1e-4)


def test_in_bfloat16_the_products_are_rounded_and_the_sums_are_not() -> None:
    scorer = StepScorer(tiny_llama(), head=True, logprob=True)
    assert scorer.head is not None
    torch.nn.init.normal_(scorer.head.weight)
    seen: list[tuple[torch.dtype, torch.Tensor, torch.Tensor]] = []
    scorer.bare.model.layers[0].mlp.gate_proj.register_forward_hook(
        lambda module, given, found: seen.append((found.dtype, found, found))
    )
    scorer.head.register_forward_hook(lambda module, given, found: seen.append((found.dtype, given[0], found)))
    whole, rounded = (step_scores(scorer, [a_row()], 1, bfloat16)[0] for bfloat16 in (False, True))
    assert [dtype for dtype, _, _ in seen] == [torch.float32, torch.float32, torch.bfloat16, torch.float32]
    _, states, found = seen[-1]  # the last layer multiplies in fp32 what the layers before gave
    expected = states.clone().float() @ scorer.head.weight.detach().T
    torch.testing.assert_close(found.clone(), expected, atol=1e-5, rtol=1e-5)
    assert not torch.equal(whole, rounded)
    torch.testing.assert_close(rounded, whole, atol=0.2, rtol=0.05)
    # The log-probability of a step is the fp32 sum of its tokens': sums rounded to bfloat16 would have 8 bits.
    assert not torch.equal(rounded[:, 1], rounded[:, 1].bfloat16().float())


@pytest.mark.parametrize("kind", ["implicit", "classifier", "bradley-terry"])
def test_the_packed_gradient_equals_the_flat_one(kind: str) -> None:
    def gradient(rows: list[list[StepRow]]) -> torch.Tensor:
        scorer = new_scorer(tiny_llama(), kind, PrmConfig(), 1)
        if scorer.head is not None:
            torch.nn.init.normal_(scorer.head.weight, generator=torch.Generator().manual_seed(0))
        total: Any = 0.0
        for batch in rows:
            inputs = StepCollator()(batch)
            names = ("input_ids", "position_ids", "attention_mask", "parents", "starts", "stops")
            total = total + scorer(**{name: inputs[name] for name in names})[0].sum()
        total.backward()
        return torch.cat([p.grad.flatten() for p in scorer.parameters() if p.grad is not None])

    flat = [pack_steps("q", PROMPT, [LabelledStep(p, s, 1.0)], []) for p, s in [((), (1, 2)), ((), (1, 3, 2))]]
    flat += [pack_steps("q", PROMPT, [LabelledStep((1, 2), s, 1.0)], []) for s in [(5, 2), (6,)]]
    packed, plain = gradient([[a_row()]]), gradient([[one] for one in flat])
    torch.testing.assert_close(packed, plain, atol=1e-4, rtol=1e-4)


def test_the_pairs_loss_is_the_hand_written_sum() -> None:
    scores = torch.tensor([[0.5, -1.0], [2.0, 0.0]])
    loss = pair_loss(scores, torch.tensor([0, 3]), torch.tensor([1, 2]), torch.tensor([1.0, 3.0]))
    expected = (math.log1p(math.exp(-1.5)) + 3 * math.log1p(math.exp(2.0))) / 4
    assert float(loss) == pytest.approx(expected, abs=1e-6)
    none = torch.tensor([], dtype=torch.long)
    assert float(pair_loss(scores, none, none, torch.tensor([]))) == 0.0


def rows_of(seed: int, count: int) -> list[StepRow]:
    """Questions where a first step is good when its first token is even, whatever the second is."""
    rng = Random(seed)
    rows = []
    for i in range(count):
        prompt = [rng.randrange(5, VOCABULARY) for _ in range(4)]
        steps = [(token, rng.randrange(5, VOCABULARY)) for token in rng.sample(range(5, 13), 4)]
        good, bad = [s for s in steps if s[0] % 2 == 0], [s for s in steps if s[0] % 2]
        labelled = [LabelledStep((), step, 1.0 - step[0] % 2) for step in steps]
        pairs = [StepPair((), g, b) for g in good for b in bad]
        rows.append(pack_steps(f"{seed}/{i}", prompt, labelled, pairs))
    return rows


@pytest.mark.parametrize(
    ("kind", "bfloat16"), [("implicit", False), ("implicit", True), ("classifier", True), ("bradley-terry", False)]
)
def test_each_kind_learns_and_leaves_the_policy_alone(kind: str, bfloat16: bool, tmp_path: Path) -> None:
    policy, settings = tiny_llama(), PrmConfig.model_validate(QUICK)
    before = {name: p.clone() for name, p in policy.named_parameters()}
    scorer = new_scorer(policy, kind, settings, 1)
    train, held_out = rows_of(1, 200), rows_of(2, 40)
    fitted = train_scorer(scorer, kind, train, held_out, settings, out_dir=tmp_path, seed=0, bfloat16=bfloat16)
    assert fitted.curve[0]["step"] == 0 and fitted.best["held_out_pairs"] > 0.9
    assert fitted.curve[0]["held_out_pairs"] < 0.75
    updates = settings.epochs * math.ceil(len(train) / settings.batch_size)
    assert fitted.curve[-1]["step"] == updates and all(math.isfinite(line["loss"]) for line in fitted.curve[1:])
    assert all(p.dtype == torch.float32 for p in scorer.parameters())
    scores = [both[:, 0] for both in step_scores(scorer, held_out, 16, bfloat16)]
    assert pair_accuracy(scores, held_out) == pytest.approx(fitted.best["held_out_pairs"])  # the best weights are back
    assert all(torch.equal(before[name], p) for name, p in policy.named_parameters())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["implicit", "classifier", "bradley-terry"])
def test_an_update_in_several_forwards_is_the_update_in_one(kind: str) -> None:
    rows = rows_of(1, 3)
    rows += [pack_steps(f"l{i}", (i, 9), steps_of(((), (5, 6), 1.0)), []) for i in (20, 21)]  # labels alone
    rows += [pack_steps("p", (30, 9), [], [StepPair((), (5, 6), (7, 8))])]  # a pair alone
    trainer = object.__new__(PrmTrainer)  # no optimiser: it would hide how long a gradient is
    trainer.settings, trainer.kind = PrmConfig(), kind

    def gradient(parts: list[list[StepRow]]) -> torch.Tensor:
        scorer = new_scorer(tiny_llama(), kind, PrmConfig(), 0)
        batches = [StepCollator()(part) for part in parts]
        whole = trainer._get_num_items_in_batch(batches, torch.device("cpu"))
        for batch in batches:
            trainer.compute_loss(scorer, batch, num_items_in_batch=whole).backward()
        return torch.cat([p.grad.flatten() for p in scorer.parameters() if p.grad is not None])

    whole = gradient([rows])
    torch.testing.assert_close(gradient([rows[:2], rows[2:4], rows[4:]]), whole, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(gradient([[row] for row in rows]), whole, atol=1e-5, rtol=1e-3)


def test_trl_trains_the_same_scorer_on_whole_sequences(student: Student, tmp_path: Path) -> None:
    settings = PrmConfig.model_validate({**QUICK, "trainer": "trl", "logprob": False, "epochs": 8})
    scorer = new_scorer(tiny_llama(), "bradley-terry", settings, 1)
    assert scorer.head is not None
    torch.nn.init.normal_(scorer.head.weight, generator=torch.Generator().manual_seed(0))
    row = a_row()
    model = sequence_model(scorer, 0)
    with torch.no_grad():
        score = float(model(input_ids=torch.tensor([[*PROMPT, 1, 2, 5, 2]])).logits[0, 0])
    assert score == pytest.approx(float(step_scores(scorer, [row], 1)[0][2, 0]), abs=1e-5)
    torch.nn.init.zeros_(scorer.head.weight)
    train, held_out = rows_of(1, 150), rows_of(2, 40)
    pairs = [
        StepPair((), tuple(row.token_ids[row.states[good] - 1 : row.states[good] + 1]),
                 tuple(row.token_ids[row.states[bad] - 1 : row.states[bad] + 1]), 0.5)
        for row in train for good, bad, _ in row.pairs
    ]  # fmt: skip
    prompts = [row.token_ids[:4] for row in train for _ in row.pairs]
    rows = [one for prompt, pair in zip(prompts, pairs, strict=True) for one in pair_rows(prompt, [pair])]
    assert len(rows) == len(pairs) and len(rows[0]["chosen_ids"]) == 6 and rows[0]["margin"] == 0.5
    fitted = train_reward(
        scorer, rows, train, held_out, student.tokenizer, settings, out_dir=tmp_path, seed=0
    )  # fmt: skip
    assert fitted.curve[0]["held_out_pairs"] == 0.5 and fitted.best["held_out_pairs"] > 0.8


def test_parts_need_pairs_and_share_no_question() -> None:
    rows = rows_of(0, 4)
    with pytest.raises(DataError, match="1 questions are both"):
        check(rows[:2], rows[1:])
    with pytest.raises(DataError, match="no held-out question"):
        check(rows, [pack_steps("q", PROMPT, steps_of(((), (1,), 1.0)), [])])


# -- data --------------------------------------------------------------------------------------------------------------


def a_tree(student: Student, *responses: tuple[list[str], float, int]) -> Tree:
    """A tree of responses: their lines, outcome and how often each was sampled."""
    tree = Tree()
    for lines, outcome, count in responses:
        node = ROOT
        for line in lines:
            ids = prm_data.encode_step(student, line)
            node = tree.attach(node, Step(ids, tuple(-0.1 for _ in ids), student.decode(ids)))
        tree.finish(node, "answer", RewardParts(outcome, outcome))
        tree.samples[node] = count
    return tree


def test_a_tree_gives_labels_where_the_prefix_is_alive_and_pairs_of_siblings(student: Student) -> None:
    tree = a_tree(
        student,
        (["2 + 3 = 5", "5 * 2 = 10", "#### 10"], 1.0, 3),
        (["2 + 3 = 5", "5 - 2 = 3", "#### 3"], 0.0, 2),
        (["2 * 3 = 6", "6 * 2 = 12", "#### 12"], 0.0, 1),
    )
    settings = PrmConfig(margin=0.5, least_outcomes=2, labels="hard")
    made = prm_data.tree_set(Question("Ana has 2 apples.", [tree]), student, settings)
    found = {student.decode(s.prefix_ids + s.step_ids).splitlines()[-1]: (s.target, s.weight) for s in made.steps}
    assert found["2 + 3 = 5"] == found["5 * 2 = 10"] == found["#### 10"] == (1.0, 1.0)
    assert found["5 - 2 = 3"] == (0.0, pytest.approx(1 - 0.4**2))  # two failures after a prefix with 3 of 5 right
    assert found["2 * 3 = 6"] == (0.0, pytest.approx(0.5))
    assert found["#### 3"][1] == found["6 * 2 = 12"][1] == 0.0  # a dead prefix says nothing about what follows
    assert [(student.decode(p.chosen_ids), student.decode(p.rejected_ids), p.depth) for p in made.pairs] == [
        ("5 * 2 = 10\n", "5 - 2 = 3\n", 1)
    ]
    assert len(made.row().states) == len(made.steps) == 8 and len(made.lean_row(9).states) == 5
    soft = prm_data.tree_set(Question("q", [tree]), student, settings.model_copy(update={"labels": "soft"}))
    assert (soft.steps[0].target, soft.steps[0].weight) == (pytest.approx(0.6), 1.0)


def test_demonstrations_are_spoiled_step_by_step(student: Student) -> None:
    task = build("train", 5, 3)
    [made] = prm_data.spoiled_sets([task], student, 3, seed=0)
    lines = (task.solution or "").split("\n")
    assert "".join(student.decode(s.step_ids) for s in made.steps if s.target).strip() == task.solution
    assert {pair.depth for pair in made.pairs} == set(range(len(lines)))
    for pair in made.pairs:
        prefix = student.decode(pair.prefix_ids).splitlines()
        assert metrics.follows_plan(lines, prefix, student.decode(pair.chosen_ids)) is True
        assert metrics.follows_plan(lines, prefix, student.decode(pair.rejected_ids)) is False
    [again] = prm_data.spoiled_sets([task], student, 3, seed=0)
    assert again == made
    wrong = spoiled("4 * 3 = 12", "Ana has 4 apples and 3 pens, 7 in all.", Random(0), 9)
    assert len(set(wrong)) == len(wrong) == 9 and not any(line.endswith("= 12") for line in wrong)
    assert any(" * 3 = " in line for line in wrong) and any(" + 3 = " in line for line in wrong)


def test_the_small_student_alone_has_its_demonstrations_spoiled(
    student: Student, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ["student=embedded", "train.demonstrations=3", "problems.source=embedded"]
    config = load_config(overrides=settings)
    assert len(prm_data.spoiled_demonstrations(student, config, set())) == 3
    monkeypatch.setattr(prm_data, "LARGE", sum(p.numel() for p in student.model.parameters()))
    assert prm_data.spoiled_demonstrations(student, config, set()) == []
    asked = load_config(overrides=[*settings, "train.prm.spoiled=1"])
    assert len(prm_data.spoiled_demonstrations(student, asked, set())) == 3


def test_pair_files_hold_text_or_token_ids(student: Student, tmp_path: Path) -> None:
    text = {"prompt": "Ana has 4 apples.", "prefix": "4 + 3 = 7\n", "chosen": "7 * 2 = 14", "rejected": "#### 7"}
    prompt = list(student.prompt_ids(text["prompt"]))
    ids = {"prompt": prompt, "prefix": student.encode("4 + 3 = 7\n"), "chosen": [4, 5], "rejected": [4], "margin": 0.5}
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in (text, text, ids)), encoding="utf-8")
    assert prm_data.is_label_file(path)
    one, two = prm_data.read_sets([path], student, PrmConfig())
    assert one.prompt_ids == two.prompt_ids == tuple(prompt)
    assert (len(one.steps), len(one.pairs)) == (2, 2) and one.pairs[0].depth == two.pairs[0].depth == 1
    assert one.pairs[0].rejected_ids == (*student.encode("#### 7"), student.engine.eos_id)
    assert two.pairs[0].margin == 0.5 and one.pairs[0].prefix_ids == two.pairs[0].prefix_ids
    path.write_text(json.dumps({"prompt": "q", "chosen": "a", "rejected": "a"}), encoding="utf-8")
    with pytest.raises(DataError, match="line 1 is no step pair"):
        prm_data.read_sets([path], student, PrmConfig())


def test_human_step_labels_are_read_along_the_chosen_completions(student: Student, tmp_path: Path) -> None:
    def completion(text: str, rating: int | None) -> dict[str, Any]:
        return {"text": text, "rating": rating, "flagged": None}

    record = {
        "question": {"problem": "Ana has 4 apples.", "ground_truth_answer": "14"},
        "label": {
            "steps": [
                {"completions": [completion("4 + 3 = 7", 1), completion("4 + 3 = 8", -1)], "chosen_completion": 0},
                {"completions": [completion("7 * 2 = 14", 1), completion("7 + 0 = 7", 0), completion("7", None)],
                 "chosen_completion": None, "human_completion": completion("7 * 2 = 14", None)},
                {"completions": [completion("#### 14", 1)], "human_completion": None, "chosen_completion": None},
            ],
            "finish_reason": "solution",
        },
    }  # fmt: skip
    path = tmp_path / "phase2_train.jsonl"
    path.write_text(json.dumps(record), encoding="utf-8")
    [made] = prm_data.read_sets([path], student, PrmConfig())
    assert [(student.decode(s.step_ids).strip(), s.target) for s in made.steps] == [
        ("4 + 3 = 7", 1.0), ("4 + 3 = 8", 0.0), ("7 * 2 = 14", 1.0), ("7 + 0 = 7", 0.5), ("#### 14", 1.0)
    ]  # fmt: skip
    assert [(p.depth, p.margin) for p in made.pairs] == [(0, 1.0), (1, 0.5)]
    assert made.steps[-1].prefix_ids == tuple(student.encode("4 + 3 = 7\n7 * 2 = 14\n"))


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_a_step_is_right_where_it_follows_the_plan() -> None:
    plan = ["2 + 3 = 5", "5 - 1 = 4", "#### 4"]
    assert metrics.same_step("3 + 2 = 5\n", "2 + 3 = 5") and not metrics.same_step("1 - 5 = 4", "5 - 1 = 4")
    assert metrics.follows_plan(plan, [], "3 + 2 = 5") is True
    assert metrics.follows_plan(plan, ["3 + 2 = 5"], "5 - 2 = 3") is False
    assert metrics.follows_plan(plan, ["2 + 2 = 4"], "4 - 1 = 3") is None
    assert metrics.follows_plan(plan, plan, "#### 4") is None


def test_figures_agree_with_enumeration() -> None:
    entries = [(0, 0, 1.0, 3.0, "1 + 1 = 2"), (0, 0, 0.0, 1.0, "1 + 1 = 3"), (1, 1, 1.0, 1.0, "4 - 1 = 3"),
               (1, 1, 0.0, 2.0, "4 + 1 = 5")]  # fmt: skip
    score = np.array([0.9, 0.1, 0.4, 0.6])
    steps = metrics.JudgedSteps.of(entries)
    pairs = np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    found = metrics.measure({"prm": score}, steps, {"prm": pairs}, np.array([0, 1, 1]))
    assert found["pair accuracy"]["prm"].value == pytest.approx(0.5)
    both = metrics.measure({"policy": score}, steps, {"policy": pairs, "prm": 1 - pairs}, np.array([0, 1, 1]))
    assert both["pair accuracy over policy"]["prm"].value == pytest.approx(0.0)  # one pair lost, one won, one level
    assert found["step AUC"]["prm"].value == pytest.approx(3 / 4)
    assert found["step AUC, true arithmetic"]["prm"].value == pytest.approx(1 / 2)  # 1 + 1 = 3 is the calculator's
    assert found["step AUC, step 1"]["prm"].value == 1.0 and found["step AUC, step 2"]["prm"].value == 0.0
    drawn = (3 * 1 + 3 * 2 + 1 * 1 + 0) / (4 * 3)
    assert found["step AUC, as drawn"]["prm"].value == pytest.approx(drawn)


def test_the_rule_for_totals_is_the_one_that_tells_outcomes_apart() -> None:
    assert [total_of(rule, [0.5, 0.4]) for rule in ("min", "product", "last")] == [0.4, 0.2, 0.4]
    assert total_of("last", []) == 1.0
    by_last = [([0.1, 0.9], 1.0, 1), ([0.9, 0.2], 0.0, 1), ([0.1, 0.8], 1.0, 2)]
    assert metrics.best_total(by_last)[0] == "last"
    assert metrics.best_total([])[0] == "min"


# -- the folder --------------------------------------------------------------------------------------------------------


def sets_of(student: Student, first: int, count: int) -> list[prm_data.StepSet]:
    tasks = [build("train", index, 1) for index in range(first, first + count)]
    return list(prm_data.spoiled_sets(tasks, student, 2, seed=0))


@pytest.mark.parametrize("kind", ["implicit", "bradley-terry", "all"])
def test_a_saved_prm_judges_as_it_was_trained(kind: str, config: Config, student: Student, tmp_path: Path) -> None:
    settings = config.train.prm.model_copy(update={"kind": kind, "epochs": 1, "evaluate_every": 100, "batch_size": 8})
    config = config.model_copy(update={"train": config.train.model_copy(update={"prm": settings})})
    parts = (sets_of(student, 0, 24), sets_of(student, 24, 8), sets_of(student, 32, 8))
    trained = prm_run.train_prm(student, config, parts, tmp_path)
    prm_run.save_prm(tmp_path, trained, student, config, {"command": "prm"})
    assert trained.labels == "the worked solution" and "policy log-probability" in trained.figures["step AUC"]
    assert set(trained.seconds) == (set(prm_run.KINDS) if kind == "all" else {kind})
    verifier = load_prm(tmp_path, student, config)
    task = build("test", 3, 2)
    lines = ["5 + 1 = 6", *(task.solution or "").split("\n")[1:]]
    steps = [Step(ids, tuple(-0.3 for _ in ids), student.decode(ids)) for ids in (
        prm_data.encode_step(student, line) for line in lines)]  # fmt: skip
    prompt = student.prompt_ids(task.problem.question)
    judged = run(lambda: verifier(task.problem, prompt, steps))
    prefix: tuple[int, ...] = ()
    labelled = []
    for step in steps:
        labelled.append(LabelledStep(prefix, step.token_ids, 1.0))
        prefix += step.token_ids
    row = pack_steps("q", student.prompt_ids(task.problem.question), labelled, [])
    [both] = step_scores(trained.fitted.scorer, [row], 1)
    expected = [
        squash(trained.scale * float(score) + trained.policy * max(sum(step.logprobs), FLOOR) + trained.shift)
        for score, step in zip(both[:, 0], steps, strict=True)
    ]
    assert list(judged.steps) == pytest.approx(expected, abs=1e-4)
    assert judged.total == pytest.approx(total_of(trained.total, judged.steps))
    assert verifier.name == "prm" and verifier.computes and verifier.scored_tokens > 0
    before = verifier.scored_tokens
    assert (
        run(lambda: verifier(task.problem, prompt, steps)) == judged and verifier.scored_tokens == before
    )  # all is cached
    assert run(lambda: verifier(Problem("p", "q", "s"), (), [])).total == 1.0


def test_a_broken_folder_is_refused(config: Config, student: Student, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no prm\.json"):
        load_prm(tmp_path, student, config)
    (tmp_path / FOLDER.card).write_text("{}")
    with pytest.raises(CheckpointError, match="broken"):
        load_prm(tmp_path, student, config)
    card = {"kind": "implicit", "policy": "", "total": "min", "vocabulary": 3, "files": {}}
    (tmp_path / FOLDER.card).write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match="is for 3 tokens"):
        load_prm(tmp_path, student, config)
    (tmp_path / FOLDER.card).write_text(json.dumps(card | {"files": {"prm.safetensors": "0"}}))
    with pytest.raises(CheckpointError, match=r"lacks prm\.safetensors"):
        load_prm(tmp_path, student, config)


def test_squash_and_unsquash_are_inverse_and_never_overflow() -> None:
    for logit in (-10.0, -0.3, 0.0, 5.0):
        assert unsquash(squash(logit)) == pytest.approx(logit, abs=1e-6)
    assert squash(-1e5) == pytest.approx(0.0) and squash(1e5) == 1.0
