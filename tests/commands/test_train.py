"""Training runs end to end with the shipped student: learn, save, die, resume, report."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from faults import lines_in, trees_in, wait_for
from finished import METHODS, ROWS, SMALL, UPDATES, finished_run
from processes import TRAIN, Started
from safetensors.torch import load_file, save_file
from support import grpo_config
from tables import read_json, table, write_jsonl

import alphazero_llm_trainer as alphazero
from alphazero_llm_trainer.chat.teachers import LEDGERS
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.train import train_main
from alphazero_llm_trainer.config.load import load_answering, load_training
from alphazero_llm_trainer.engine.protocol import TeacherLedger
from alphazero_llm_trainer.errors import CheckpointError
from alphazero_llm_trainer.files import write_json
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.mcts.select import GUIDED_EXPLORATION
from alphazero_llm_trainer.policy.critic import NUMBERS
from alphazero_llm_trainer.policy.folders import VALUE, carried_value, with_model
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.runs.export import SUFFIXES, export_rows
from alphazero_llm_trainer.runs.folder import RunFolder
from alphazero_llm_trainer.runs.recorder import Recorder
from alphazero_llm_trainer.runs.run import Run
from alphazero_llm_trainer.runs.start import prepare
from alphazero_llm_trainer.serve.load_models import load_models
from alphazero_llm_trainer.tree.arena import Tree
from alphazero_llm_trainer.tree.journal import read

CASES = table("train")

QUESTION = "Tom has 3 bags. Each bag holds 4 pens. How many pens does Tom have?"


@pytest.fixture(scope="module", params=METHODS)
def whole_run(request, tmp_path_factory):
    """An uninterrupted run of each method: its folder and method."""
    return finished_run(request.param, tmp_path_factory), request.param


def agree(run, other, *files, atol=0.0):
    """Two runs have the same student, and the same numbers in these files."""
    for file in ("student/model.safetensors", *files):
        one, two = load_file(run / file), load_file(other / file)
        assert one.keys() == two.keys()
        for name, tensor in one.items():
            assert torch.allclose(tensor, two[name], rtol=0, atol=atol), (file, name)


def card_of(run):
    return read_json(run / "run.json")


def rounds_of(run):
    return [line for line in RunFolder(run).read_metrics() if "mean_reward" in line]


def test_a_run_reports_what_it_did(whole_run):
    run, method = whole_run
    card, rounds = card_of(run), rounds_of(run)
    assert card["method"] == method
    took = [line[f"{part}_seconds"] for line in rounds for part in ("search", "update")]
    assert min(took) > 0 and sum(took) < card["seconds"]["total"]
    assert card["before"]["problems"] == len(card["after"]["correct"]) == 12
    assert card["gain"]["low"] <= card["gain"]["value"] <= card["gain"]["high"]
    assert [line["round"] for line in rounds] == [0, 1, 2] and all("loss" in one for one in rounds)
    assert sum("validation_accuracy" in line for line in RunFolder(run).read_metrics()) == 3
    # Supervised rounds make two passes over their own rows, in batches of 5 of which one is a
    # demonstration.
    supervised = method in ("rft", "legacy", "alphazero")
    for line in rounds:
        assert line["updates"] == (min(4, -(-2 * line["rows"] // 4)) if supervised else 4)
    sampled = [line["cost"]["sampled_tokens"] for line in rounds]
    assert card["search_cost"]["sampled_tokens"] == sum(sampled) > 0
    assert {p.name for p in run.glob("checkpoint-*")} == {f"checkpoint-{n}" for n in (8, 16, 24)}
    # The engine and the learner agree on log-probabilities; supervised rows have no old ones.
    gaps = [line["engine_logprob_gap"] for line in rounds if "engine_logprob_gap" in line]
    assert len(gaps) == (0 if supervised else 3) and max(gaps, default=0.0) < 1e-4
    records = trees_in(run).values()
    assert len(records) == 24
    for record in records:
        assert Tree.from_dict(record["tree"]).N[0] > 0 and "gold" not in record["problem"]
    # The weights have moved, and the student's folder loads.
    config = grpo_config(["student=embedded"])
    trained, shipped = (
        load_student(config, path=path).model.parameters() for path in (run / "student", None)
    )
    assert max((a - b).abs().max() for a, b in zip(trained, shipped, strict=True)) > 1e-5


def test_a_budget_of_tokens_ends_the_run_and_the_learning_rate_with_it(tmp_path, capsys):
    limits = f"--tokens 5000 --num 2000 --checkpoint-dir {tmp_path}".split()
    assert train_main([*SMALL, *METHODS["rft"], *limits]) == 0
    told, run = capsys.readouterr(), tmp_path / "run-001"
    assert "5,000 sampled tokens, at most 2,000 embedded questions" in told.out + told.err
    rounds, card = rounds_of(run), card_of(run)
    sampled = [line["cost"]["sampled_tokens"] for line in rounds]
    assert sum(sampled[:-1]) < 5000 <= sum(sampled) == card["search_cost"]["sampled_tokens"]
    assert card["questions"] == sum(line["questions"] for line in rounds) < 2000
    assert f"questions       {card['questions']}\n" in told.out and card["rounds"] == len(rounds)
    # A cosine over the tokens, not over 2,000 questions.
    assert rounds[-1]["learning_rate"] < 0.7 * rounds[1]["learning_rate"]
    # The finished run has nothing left to do, but to make a page that a crash left out.
    before = (run / "run.json").read_bytes()
    (run / "report.html").unlink()
    assert train_main(["--resume", str(run)]) == 0
    assert "this run is finished" in capsys.readouterr().err
    assert (run / "run.json").read_bytes() == before and (run / "report.html").exists()


@pytest.mark.parametrize(
    "whole_run",
    ["rft", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "alphazero"))],
    indirect=True, scope="module",
)  # fmt: skip
def test_killed_at_a_random_moment_it_resumes_to_the_same_weights(whole_run, tmp_path):
    """A second process is killed with SIGKILL while it searches; nothing is lost, searched twice or
    trained otherwise.
    """
    run, method = whole_run
    command = [TRAIN, *SMALL, *METHODS[method], "--checkpoint-dir", str(tmp_path)]
    process, resumed = Started(tmp_path / "process", *command), tmp_path / "run-001"
    # The 18th tree is in the middle of the third round, behind two checkpoints.
    wait_for(lambda: lines_in(resumed) >= 18 or not process.runs, 600)
    process.kill()
    journal, folder = resumed / "journal.jsonl", RunFolder(resumed)
    kept, died = journal.read_bytes(), folder.newest_checkpoint(pytest.fail)[1]
    # What a crash in the middle of a write leaves behind.
    with journal.open("ab") as file:
        file.write(b'{"key": "2/half')
    assert train_main(f"--resume --checkpoint-dir {tmp_path}".split()) == 0
    assert journal.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    mine, whole = trees_in(resumed), trees_in(run)
    assert mine.keys() == whole.keys() and len(mine) == 24
    for key, record in mine.items():
        # The rest of a round is searched in a smaller batch: sums may round otherwise, the trees
        # may not differ.
        for column, found in record["tree"].items():
            same = whole[key]["tree"][column]
            if column == "logprobs":
                same = [pytest.approx(of_step, abs=1e-4) for of_step in same]
            elif column in ("W", "reward", "pre"):
                same = pytest.approx(same, abs=1e-4)
            assert found == same, (key, column)
    critic, value = "checkpoint-24/model.safetensors", f"student/{VALUE}/{NUMBERS}"
    agree(run, resumed, *{"ppo": [critic], "alphazero": [value]}.get(method, []), atol=1e-4)
    if method == "ppo":
        learnt = load_file(run / critic).items()
        assert any(tensor.any() for name, tensor in learnt if name.startswith("critic.score"))
    assert [line["round"] for line in rounds_of(resumed)] == [0, 1, 2]
    # The seconds go on from the killed process's last checkpoint: those of both count, and what was
    # done twice counts once.
    seconds, facts = card_of(resumed)["seconds"], folder.newest_checkpoint(pytest.fail)[1]
    for name in ("total", "training"):  # run.json has tenths of a second
        assert died[f"{name}_seconds"] < facts[f"{name}_seconds"] <= seconds[name] + 0.1
    spent, undisturbed = (card_of(folder)["search_cost"] for folder in (resumed, run))
    for cost in (spent, undisturbed):
        # How much of a prompt is cached depends on what else is searched at the time; the sum
        # doesn't.
        cost["prompt_tokens"] += cost.pop("cached_tokens")
        assert cost.pop("seconds") > 0
    assert spent == undisturbed
    assert card_of(resumed)["ends"] == card_of(run)["ends"]  # the killed process's trees count


@pytest.mark.parametrize("whole_run", ["alphazero"], indirect=True, scope="module")
def test_the_value_of_a_students_folder_is_used_as_validation_chose(whole_run, tmp_path, capsys):
    run, _ = whole_run
    student = shutil.copytree(run / "student", tmp_path / "student")
    config = RunFolder(run).config()
    assert "carries a value" in (student / "README.md").read_text()
    page = (run / "report.html").read_text()
    assert ">Solved trees<" in page and ">Value on new trees<" in page
    # Nobody has said yet that it helps.
    found = search(student)
    assert found.rule == {"rule": "phs", "exploration": 100.0, "verifier": "calculator"}
    assert not any(found.tree.V)
    found = search(student, select="puct")  # what a user sets wins
    assert found.rule == {"rule": "puct", "exploration": GUIDED_EXPLORATION}
    assert found.tree.V[1] is not None and search("embedded").tree.V[-1] is None
    loaded = alphazero.load(student)

    def verifiers(model):
        """Who judges untold, of `evaluate` and of `serve`; the search that both take."""
        out = tempfile.mkdtemp(dir=tmp_path)
        asked = {"methods": "mcts", "num": 4, "out": Path(out) / "eval", "progress": False}
        facts = alphazero.evaluate("embedded", model, **asked).facts
        config, path = with_model(str(student), [], lambda layers: load_answering(overrides=layers))
        _, answerer = load_models(config, "mcts", path, None, None, None)
        served = answerer.config.search
        assert facts["config"]["search"]["select"] == served.select
        return facts["verifier"], answerer.verifier.name, served.select, served.backup

    assert verifiers(student) == ("calculator", "calculator", "phs", None)
    tune = f"eval --tune --model {student} -n 3 --budget-tokens 120 --json -q".split()
    assert main(tune) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["table"]) == 10
    card = student / "value" / "critic.json"
    assert json.loads(card.read_text())["search"] == record and not record["helps"]
    for words in ("--verifier calculator", "--budget-tokens 9 90", "--samples 2"):
        assert main([*"eval --tune --model".split(), str(student), *words.split()]) == 2
    chosen = {"select": "puct", "backup": "max", "exploration": 0.1, "helps": True}
    write_json(card, json.loads(card.read_text()) | {"search": chosen})
    assert verifiers(loaded) == ("calculator+value", "calculator+value", "puct", "max")
    found = search(student)
    assert found.rule == {"rule": "open_puct", "exploration": 0.1, "verifier": "calculator+value"}
    assert found.tree.V[1] is not None and found.tree.best is not None
    for broken in ({"select": "evil.py:SELECTOR", "helps": True}, {"helps": True}, [1]):
        write_json(card, json.loads(card.read_text()) | {"search": broken})
        with pytest.raises(CheckpointError, match=r"critic\.json.*--tune"):
            search(student)
    write_json(card, json.loads(card.read_text()) | {"search": chosen})
    assert begins_with_its_value(student, config)
    with torch.no_grad():  # what it carries is of other weights then, and says nothing
        loaded.model.get_input_embeddings().weight.add_(1e-3)
    loaded.engine.set_policy(None, 1)
    assert search(loaded, select="puct").tree.V[-1] is None
    assert carried_value(config.with_values(engine={"backend": "vllm"}), student)[1] is None
    for kind in SUFFIXES:
        assert export_rows(run, kind, tmp_path / f"{kind}{SUFFIXES[kind]}") >= 0


def test_an_adapter_and_what_it_is_merged_to_carry_the_value_too(tmp_path, capsys):
    run, out = tmp_path / "run-001", tmp_path / "merged"
    flags = [*SMALL, *METHODS["alphazero"], *"--num-examples 8 --set train.adapter=lora".split()]
    assert train_main([*flags, "--checkpoint-dir", str(tmp_path), "-q"]) == 0
    adapter = run / "adapter"
    merge = f"merge --adapter {adapter} -q --out".split()
    assert main([*merge, str(out)]) == 0
    first, *others = (
        search(folder, select="puct").tree for folder in (run / "student", adapter, out)
    )
    for one in others:  # a state has one value, however the student is stored
        assert one.text[1] == first.text[1]
        assert one.V[1] == pytest.approx(first.V[1], abs=1e-4)
    assert begins_with_its_value(adapter, RunFolder(run).config())
    # A value over other states is none of the sum's.
    file = adapter / "adapter_model.safetensors"
    save_file({name: tensor + 1e-3 for name, tensor in load_file(file).items()}, file)
    capsys.readouterr()
    assert main([*merge, str(tmp_path / "other")]) == 2
    assert "was learnt with another adapter" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_asked_to_stop_it_ends_early_and_can_be_resumed(tmp_path, monkeypatch):
    words = [word for word in [*SMALL, *ROWS] if "=" in word]
    words += (
        "teachers.tier=embedded train.num_examples=16 train.eval_size=4 train.save_every=8".split()
    )
    config = grpo_config(["student=embedded", *words])
    folder = RunFolder(tmp_path / "run-001")
    folder.path.mkdir()

    def trees():
        return [*read(folder.journal)]

    def run(config, stop=lambda: False):
        made = Run(prepare(config), stop)
        made.load()
        return made.execute(folder, resume=folder.card.exists())

    assert run(config, lambda: True) is None  # before the first round
    assert "before" not in folder.read_card()
    asked, shown = False, Recorder.tree

    def after_ten(recorder, tree):
        nonlocal asked
        shown(recorder, tree)
        asked = len(trees()) >= 10

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "tree", after_ten)
        assert run(config, lambda: asked) is None
    assert 10 <= len(trees()) < 16
    told = sum(record["cost"]["sampled_tokens"] for record in trees())
    ledger = TeacherLedger(calls=1000, used=1000)  # of the processes before
    write_json(folder.path / LEDGERS, {"scripted": asdict(ledger)})
    stored, started = folder.config(), []
    monkeypatch.setattr(Progress, "start", lambda shown, *given, **more: started.append(given))
    card = run(stored.with_values(train={"tokens": 10**6}))
    assert started[0] == (10**6, told)  # all trees that are there, of an open round too
    assert card["teachers"]["scripted"]["proposals_used"] >= 1000 and len(trees()) == 16


def test_a_run_whose_rows_or_base_changed_is_not_gone_on_with(tmp_path, capsys):
    """Under LoRA a checkpoint has the adapter alone, which would go on over whatever is there."""
    rows, base, out = tmp_path / "rows.jsonl", tmp_path / "base", tmp_path / "runs"
    lines = [{"question": f"{i} coins and 4 more?", "answer": str(i + 4)} for i in range(60)]
    write_jsonl(rows, lines)
    shutil.copytree(PACKAGED, base)
    flags = f"""
        --model embedded --use-grpo -q --source {rows} --num-examples 8 --save-every 4 --eval-size 4
        --set models.embedded.path={base} --set train.adapter=lora --set train.preflight=0
        --set train.validation_size=0 --set train.demonstrations=0 --set train.keep_checkpoints=1
    """.split()
    assert train_main([*flags, "--out", str(out)]) == 0
    run = out / "run-001"
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-8"]
    card = card_of(run)
    del card["after"]  # as where it ended before its end
    (run / "run.json").write_text(json.dumps(card))

    def goes_on(said=None):
        capsys.readouterr()
        assert train_main(f"--resume {run} -q".split()) == (2 if said else 0)
        assert said is None or said in capsys.readouterr().err

    answers = rows.read_text()
    rows.write_text(answers.replace('"answer": "1', '"answer": "2'))
    goes_on("other questions or answers than when the run in")
    rows.write_text(answers)
    weights = base / "model.safetensors"
    kept = weights.read_bytes()
    changed = load_file(weights)
    changed["model.norm.weight"] *= 2
    save_file(changed, weights, {"format": "pt"})
    goes_on("has other weights than when the run in")
    weights.write_bytes(kept)
    goes_on()


def test_a_question_that_does_not_fit_is_recorded_and_the_run_goes_on(tmp_path):
    # So few tokens cut every response.
    flags = f"""
        --num-examples 8 --set engine.max_context=48 --set search.max_tokens=20
        --set train.preflight=0 --set train.demonstration_share=0 --checkpoint-dir {tmp_path}
    """
    assert train_main([*SMALL, *UPDATES, *flags.split()]) == 0
    ended = [record["ended_by"] for record in trees_in(tmp_path / "run-001").values()]
    assert len(ended) == 8 and "simulations" in ended
    assert any(reason.startswith("failed: prompt has") for reason in ended)


def test_the_untrained_student_is_kept_when_no_checkpoint_beats_it(tmp_path):
    flags = """
        --set train.keep_best=true --set train.optimizer.learning_rate=0.5 --num-examples 8
    """.split()
    assert train_main([*SMALL, *UPDATES, *flags, "--checkpoint-dir", str(tmp_path)]) == 0
    card = card_of(tmp_path / "run-001")
    assert card["kept"].startswith("best checkpoint: the untrained student, as no")
    assert card["after"]["correct"] == card["before"]["correct"]


def test_of_equally_good_checkpoints_the_earliest_is_kept(tmp_path, monkeypatch):
    run = Run(prepare(grpo_config(["student=embedded"])))
    run.load()
    recorder, scores = run.recorder(RunFolder(tmp_path)), iter([0.5, 0.5, 0.75, 0.75, 0.25])
    monkeypatch.setattr(recorder, "evaluate", lambda tasks: None)
    monkeypatch.setattr(recorder, "score", lambda answers: next(scores))
    for rounds_done, best in enumerate([(0.5, 0), (0.5, 0), (0.75, 2), (0.75, 2), (0.75, 2)]):
        recorder.validate(rounds_done)
        assert recorder.best == best


@pytest.mark.parametrize(
    "method, student, questions, enough",
    CASES["short runs"],
)
def test_a_run_too_short_to_gain_anything_says_so(method, student, questions, enough):
    """As with `--save-every 25`; a run of `enough` questions makes the updates that were
    measured."""
    own = [f"train.method={method}", f"student={student}", f"train.num_examples={questions}"]
    short = [] if questions == 4800 else ["train.save_every=25"]
    run = Run(prepare(load_training(overrides=[*own, *short, "problems.source=embedded"])))
    said = run.few_updates()
    assert bool(said) is (enough is not None)
    assert enough is None or said.endswith(f"--num-examples {enough:,}")


@pytest.mark.parametrize(
    "method, rounds, told", [("ppo", 2, True), ("ppo", 3, False), ("grpo", 2, False)]
)
def test_a_run_that_trains_a_critic_alone_says_so(method, rounds, told):
    config = load_training(overrides=[f"train.method={method}", "student=embedded"])
    config = config.with_values(
        problems={"source": "embedded"},
        train={"num_examples": 20 * rounds, "questions_per_round": 20, "save_every": 20},
    )
    said = Run(prepare(config)).few_rounds()
    assert bool(said) is told and ("--num-examples 41 " in said) is told


@pytest.mark.parametrize(
    "flags",
    [
        "--use-grpo --set train.credit=step --set train.groups=tree",
        "--use-ppo --set train.adapter=lora",
    ],
)
def test_variants_train(flags, tmp_path):
    flags = f"--num-examples 8 --checkpoint-dir {tmp_path} {flags}".split()
    assert train_main([*SMALL, *ROWS, *flags]) == 0
    assert card_of(tmp_path / "run-001")["search_cost"]["sampled_tokens"] > 0


@pytest.mark.parametrize("whole_run", ["rft"], indirect=True, scope="module")
def test_a_run_starts_from_the_student_of_another(whole_run, tmp_path, capsys):
    student = whole_run[0] / "student"
    flags = f"--num-examples 8 --model {student} --checkpoint-dir {tmp_path}".split()
    assert train_main([*SMALL, *UPDATES, *flags]) == 0
    assert f"student {student} (" in capsys.readouterr().err
    card = card_of(tmp_path / "run-001")
    assert card["started_from"] == str(student)
    assert card["before"]["correct"] == card_of(whole_run[0])["after"]["correct"]


def unfinished(run, to, rounds=3):
    """A copy of a run as it was before its last evaluation, after so many rounds."""
    shutil.copytree(run, to)
    card = card_of(run)
    del card["after"]
    (to / "run.json").write_text(json.dumps(card))
    for number in range(rounds, 3):
        shutil.rmtree(to / f"checkpoint-{8 * number + 8}")
    trees = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (to / "journal.jsonl").write_bytes(b"".join(trees[: 8 * rounds]))
    return to


@pytest.mark.parametrize("whole_run", ["alphazero"], indirect=True, scope="module")
def test_from_a_checkpoint_it_goes_on_to_the_same_bits(whole_run, tmp_path, capsys):
    run, _ = whole_run
    again, value = unfinished(run, tmp_path / "run-001", rounds=1), f"student/{VALUE}/{NUMBERS}"
    assert train_main(["--resume", str(again)]) == 0
    assert capsys.readouterr().err.count(", pair accuracy ") == 2
    agree(run, again, value)
    assert load_file(run / value)["weight"].any()
    figures = [
        [
            [line[f"value_{name}"] for name in ("auc", "pair_accuracy", "error")]
            for line in rounds_of(p)
        ]
        for p in (run, again)
    ]
    assert figures[0] == figures[1] and figures[0][0] == [None] * 3 and None not in figures[0][1]


def begins_with_its_value(student, config):
    """Whether a run that trains the student of this folder on begins with the value it carries."""
    run = Run(prepare(config.with_values(train={"student": str(student)})))
    run.load()
    learnt = load_file(student / VALUE / NUMBERS)["weight"]
    return torch.equal(run.objective.value.weight[0], learnt)


def search(model, simulations=6, **settings):
    asked = {"simulations": simulations, "progress": False, **settings}
    return alphazero.search(QUESTION, model=model, **asked)


@pytest.mark.parametrize("whole_run", ["ppo"], indirect=True, scope="module")
def test_what_a_disk_broke_is_made_again(whole_run, tmp_path, capsys):
    """A truncated checkpoint is passed over for the one before it, and the run ends in the
    undisturbed one's weights.
    """
    run, _ = whole_run
    copy = unfinished(run, tmp_path / "run-001")
    broken = copy / "checkpoint-24" / "model.safetensors"
    broken.write_bytes(broken.read_bytes()[:-100])
    assert train_main(["--resume", str(copy)]) == 0
    assert "going on from the one before it" in capsys.readouterr().err
    assert (copy / "journal.jsonl").read_bytes() == (run / "journal.jsonl").read_bytes()
    agree(run, copy)


def test_a_kill_between_a_checkpoint_and_its_best_weights_loses_neither(monkeypatch, tmp_path):
    scores = iter(number / 10 for number in range(10))
    monkeypatch.setattr(Recorder, "score", lambda recorder, answers: next(scores))
    flags = f"--set train.keep_best=true --checkpoint-dir {tmp_path / 'whole'}".split()
    assert train_main([*SMALL, *METHODS["rft"], *flags]) == 0
    run = tmp_path / "whole" / "run-001"
    copy = unfinished(run, tmp_path / "run-001")
    best = RunFolder(copy).best
    best.write_bytes(b"of an earlier round")
    assert train_main(["--resume", str(copy)]) == 0
    agree(run, copy, best.relative_to(copy))


STUDY = ["train", *SMALL, *"--use-rft --num-examples 8 --tokens 9999 --seeds 2 --out".split()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_seed_outlives_its_command(number, tmp_path):
    words = [*STUDY, str(tmp_path), "--num-examples", "4000"]
    command = subprocess.Popen([sys.executable, "-m", "alphazero_llm_trainer", *words])
    wait_for(lambda: len(list(tmp_path.glob("seed-*/run-*"))) == 2, seconds=300)
    command.send_signal(number)
    command.wait(30)

    def left():
        lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        return str(tmp_path) in lines.stdout

    wait_for(lambda: not left(), seconds=30)


@pytest.mark.slow
def test_seeds_train_beside_each_other_stop_and_go_on(tmp_path, capsys):
    words = [*STUDY, str(tmp_path)]

    def interrupt():
        wait_for(lambda: any(tmp_path.glob("seed-*/run-*")), seconds=300)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    assert main(words) == 130
    assert main([*words, "--resume", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    cards = [read_json(tmp_path / f"seed-{seed}" / "run-001" / "run.json") for seed in (7, 8)]
    assert [row["seed"] for row in rows] == [card["seed"] for card in cards] == [7, 8]
    assert [row["gain"] for row in rows] == [card["gain"]["value"] for card in cards]
    page = (tmp_path / "report.html").read_text()
    assert "seed-8" in page and "gain over 2 seeds" in page
    assert "of 9,999 sampled tokens" in (tmp_path / "seed-8" / "train.log").read_text()


def test_seeds_that_cannot_be_trained_are_refused(tmp_path, capsys):
    assert main([*STUDY, str(tmp_path), "--set", "train.loss=x"]) == 2
    assert main([*STUDY, str(tmp_path), "--dry-run"]) == 2
    (tmp_path / "seed-8").mkdir()
    assert main([*STUDY, str(tmp_path)]) == 2
    assert "seed-8 is there already" in capsys.readouterr().err
