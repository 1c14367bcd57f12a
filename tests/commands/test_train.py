"""Training runs end to end with the shipped student: learn, save, die, resume, report."""

import json
import shutil
import time
from dataclasses import asdict

import pytest
import torch
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
from alphazero_llm_trainer.files import write_json
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.mcts.journal import read
from alphazero_llm_trainer.mcts.select import GUIDED
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.policy.critic import NUMBERS
from alphazero_llm_trainer.policy.folders import VALUE, carried_value, with_model
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.runs.export import SUFFIXES, export
from alphazero_llm_trainer.runs.folder import RunFolder
from alphazero_llm_trainer.runs.recorder import Recorder
from alphazero_llm_trainer.runs.start import prepare
from alphazero_llm_trainer.runs.train import Run
from alphazero_llm_trainer.serve.load import load_models

CASES = table("train")

SMALL = """
    --num-examples 24 --save-every 8 --eval-size 12 --model embedded
    --set problems.levels=[2,3] --set train.questions_per_round=8 --set train.validation_size=12
    --set train.keep_best=false --set train.demonstrations=20
    --set train.optimizer.batch_size=5 --set train.optimizer.epochs=2
""".split()  # legacy learns from questions with right and wrong responses
ROWS, UPDATES = ["--set", "train.rows_per_round=8"], ["--set", "train.updates_per_round=4"]
QUESTION = "Tom has 3 bags. Each bag holds 4 pens. How many pens does Tom have?"
METHODS = {
    "grpo": ["--use-grpo", *ROWS],
    "rft": ["--use-rft", *UPDATES],
    "ppo": ["--use-ppo", *ROWS, "--set", "train.critic_rounds=1"],
    "legacy": ["--use-legacy", *UPDATES],
    "alphazero": ["--config", "alphazero", *UPDATES, "--set", "search.budget_tokens=200"],
}


def weights(run):
    return load_file(run / "student" / "model.safetensors")


@pytest.fixture(scope="module", params=METHODS)
def whole_run(request, tmp_path_factory):
    """An uninterrupted run of each method: its folder and method."""
    directory = tmp_path_factory.mktemp(request.param)
    assert train_main([*SMALL, *METHODS[request.param], "--checkpoint-dir", str(directory)]) == 0
    return directory / "run-001", request.param


def card_of(run):
    return read_json(run / "run.json")


def rounds_of(run):
    return [line for line in RunFolder(run).read_metrics() if "mean_reward" in line]


def test_a_run_reports_what_it_did(whole_run):
    run, method = whole_run
    card, rounds = card_of(run), rounds_of(run)
    assert card["method"] == method
    assert (
        card["before"]["problems"]
        == card["after"]["problems"]
        == len(card["after"]["correct"])
        == 12
    )
    assert card["gain"]["low"] <= card["gain"]["value"] <= card["gain"]["high"]
    assert [line["round"] for line in rounds] == [0, 1, 2] and all(
        "loss" in line for line in rounds
    )
    assert sum("validation_accuracy" in line for line in RunFolder(run).read_metrics()) == 3
    # Supervised rounds make two passes over their own rows, in batches of 5 of which one is a
    # demonstration.
    supervised = method in ("rft", "legacy", "alphazero")
    assert all(
        line["updates"] == (min(4, -(-2 * line["rows"] // 4)) if supervised else 4)
        for line in rounds
    )
    assert (
        card["search_cost"]["sampled_tokens"]
        == sum(line["cost"]["sampled_tokens"] for line in rounds)
        > 0
    )
    assert {p.name for p in run.glob("checkpoint-*")} == {f"checkpoint-{n}" for n in (8, 16, 24)}
    # The engine and the learner agree on log-probabilities; supervised rows have no old ones.
    gaps = [line["engine_logprob_gap"] for line in rounds if "engine_logprob_gap" in line]
    assert len(gaps) == (0 if supervised else 3) and max(gaps, default=0.0) < 1e-4
    # The journal has each question once.
    records = list(read(run / "journal.jsonl"))
    assert len(records) == len({record["key"] for record in records}) == 24
    for record in records:
        assert Tree.from_dict(record["tree"]).N[0] > 0 and "gold" not in json.dumps(
            record["problem"]
        )
    # The weights have moved, and the student's folder loads.
    config = grpo_config(["student=embedded"])
    trained, shipped = (
        load_student(config, path=path).model.parameters() for path in (run / "student", None)
    )
    assert max((a - b).abs().max().item() for a, b in zip(trained, shipped, strict=True)) > 1e-5


def test_a_budget_of_tokens_ends_the_run_and_the_learning_rate_with_it(tmp_path, capsys):
    limited = [
        *SMALL,
        *METHODS["rft"],
        *f"--tokens 5000 --num 2000 --checkpoint-dir {tmp_path}".split(),
    ]
    assert train_main(limited) == 0
    told = capsys.readouterr()
    assert "5,000 sampled tokens, at most 2,000 embedded questions" in told.out + told.err
    run = tmp_path / "run-001"
    rounds = rounds_of(run)
    sampled = [line["cost"]["sampled_tokens"] for line in rounds]
    assert sum(sampled[:-1]) < 5000 <= sum(sampled)
    card = card_of(run)
    asked = sum(line["questions"] for line in rounds)
    assert card["questions"] == asked < 2000 and f"questions       {asked}\n" in told.out
    assert card["rounds"] == len(rounds) and card["search_cost"]["sampled_tokens"] == sum(sampled)
    rates = [line["learning_rate"] for line in rounds]
    assert rates[-1] < 0.7 * rates[1]  # a cosine over the tokens, not over 2,000 questions
    # The finished run has nothing left to do.
    before = weights(run)
    assert train_main(["--resume", str(run)]) == 0
    assert all(torch.equal(before[name], one) for name, one in weights(run).items())


@pytest.mark.parametrize(
    "whole_run", ["rft", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "alphazero"))],
    indirect=True, scope="module",
)  # fmt: skip
def test_killed_at_a_random_moment_it_resumes_to_the_same_weights(whole_run, tmp_path):
    """A second process is killed with SIGKILL while it searches; nothing is lost, searched twice or
    trained otherwise.
    """
    run, method = whole_run
    command = [TRAIN, *SMALL, *METHODS[method], "--checkpoint-dir", str(tmp_path)]
    process = Started(tmp_path / "process", *command)
    journal = tmp_path / "run-001" / "journal.jsonl"
    deadline = time.monotonic() + 600  # a busy machine starts slowly
    # The 18th tree is in the middle of the third round, behind two checkpoints.
    while time.monotonic() < deadline and process.runs:
        if journal.exists() and journal.read_bytes().count(b"\n") >= 18:
            break
        time.sleep(0.005)
    process.kill()
    kept, died = (
        journal.read_bytes(),
        RunFolder(tmp_path / "run-001").newest_checkpoint(pytest.fail)[1],
    )
    # What a crash in the middle of a write leaves behind.
    with journal.open("ab") as file:
        file.write(b'{"key": "2/half')
    assert train_main(f"--resume --checkpoint-dir {tmp_path}".split()) == 0
    resumed = tmp_path / "run-001"
    assert journal.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    mine = {record["key"]: record["tree"] for record in read(journal)}
    whole = {record["key"]: record["tree"] for record in read(run / "journal.jsonl")}
    assert mine.keys() == whole.keys()
    for key, tree in mine.items():
        # The rest of a round is searched in a smaller batch: sums may round otherwise, the trees
        # may not differ.
        logprobs = [value for step in tree.pop("logprobs") for value in step]
        assert logprobs == pytest.approx(
            [v for step in whole[key]["logprobs"] for v in step], abs=1e-4
        )
        for column in ("W", "reward", "pre"):
            assert tree.pop(column) == pytest.approx(whole[key][column], abs=1e-4)
        assert tree == {column: whole[key][column] for column in tree}
    assert len(list(read(journal))) == 24 == len(mine)
    for name, tensor in weights(run).items():
        assert torch.allclose(tensor, weights(resumed)[name], atol=1e-4), name
    if method == "ppo":
        critics = [
            load_file(path / "checkpoint-24" / "model.safetensors") for path in (run, resumed)
        ]
        assert any(
            tensor.abs().max() > 0
            for name, tensor in critics[0].items()
            if name.startswith("critic.score")
        )
        for name, tensor in critics[0].items():
            assert torch.allclose(tensor, critics[1][name], atol=1e-4), name
    if method == "alphazero":
        values = [load_file(path / "student" / VALUE / NUMBERS) for path in (run, resumed)]
        for name, tensor in values[0].items():
            assert torch.allclose(tensor, values[1][name], atol=1e-4), name
    assert [line["round"] for line in rounds_of(resumed)] == [0, 1, 2]
    # The seconds go on from the killed process's last checkpoint: those of both count, and what was
    # done twice counts once.
    seconds, facts = (
        card_of(resumed)["seconds"],
        RunFolder(resumed).newest_checkpoint(pytest.fail)[1],
    )
    assert died["total_seconds"] < facts["total_seconds"] <= seconds["total"] + 0.1
    assert died["training_seconds"] < seconds["training"]
    spent, undisturbed = (card_of(folder)["search_cost"] for folder in (resumed, run))
    for cost in (spent, undisturbed):
        # How much of a prompt is cached depends on what else is searched at the time; the sum
        # doesn't.
        cost["prompt_tokens"] += cost.pop("cached_tokens")
        assert cost.pop("seconds") > 0
    assert spent == undisturbed
    assert card_of(resumed)["ends"] == card_of(run)["ends"]  # the killed process's trees count


@pytest.mark.parametrize("whole_run", ["alphazero"], indirect=True, scope="module")
def test_stopped_between_rounds_it_goes_on_to_the_same_bits(whole_run, tmp_path, monkeypatch):
    run, _ = whole_run
    stored, asked = RunFolder(run).config(), False
    folder, saved = RunFolder(tmp_path / "run-001"), Recorder.checkpoint
    folder.path.mkdir()

    def once(*given):
        nonlocal asked
        saved(*given)
        asked = True

    monkeypatch.setattr(Recorder, "checkpoint", once)
    first = Run(prepare(stored), lambda: asked)
    first.load()
    assert first.execute(folder) is None and len(rounds_of(folder.path)) == 1
    monkeypatch.undo()
    said = []
    again = Run(prepare(stored), progress=Progress(tell=said.append))
    again.load()
    assert again.execute(folder, resume=True) is not None
    assert ["; AUC of the value " in line for line in said if line.startswith("round ")] == [
        True
    ] * 2
    for file in ("model.safetensors", f"{VALUE}/{NUMBERS}"):
        whole, mine = (load_file(path / "student" / file) for path in (run, folder.path))
        assert all(torch.equal(whole[name], tensor) for name, tensor in mine.items()), file
    assert load_file(run / "student" / VALUE / NUMBERS)["weight"].any()
    figures = [
        [(line["value_auc"], line["value_error"]) for line in rounds_of(p)]
        for p in (run, folder.path)
    ]
    assert figures[0] == figures[1] and figures[0][0] == (None, None) != figures[0][1]


def begun_from(student, config):
    """What a run's value begins with where it trains the student of this folder on."""
    run = Run(prepare(config.changed(train={"student": str(student)})))
    run.load()
    return run.objective.value.weight[0]


@pytest.mark.parametrize("whole_run", ["alphazero"], indirect=True, scope="module")
def test_the_value_of_a_students_folder_is_used_untold(whole_run, tmp_path, capsys):
    run, _ = whole_run
    student = run / "student"
    assert "carries a value" in (student / "README.md").read_text()
    page = (run / "report.html").read_text()
    assert ">Solved trees<" in page and ">Value on new trees<" in page
    found = alphazero.search(QUESTION, model=student, simulations=8, progress=False)
    assert found.rule == {"rule": "puct", "exploration": GUIDED}
    assert found.tree.V[1] is not None
    assert alphazero.search(QUESTION, simulations=2, progress=False).tree.V[-1] is None
    out = tmp_path / "table"
    table = alphazero.evaluate("embedded", student, methods="mcts", num=4, out=out, progress=False)
    assert table.facts["verifier"] == "calculator+value"
    loaded = alphazero.load(student)
    again = alphazero.evaluate(
        "embedded", loaded, methods="mcts", num=4, out=tmp_path / "again", progress=False
    )
    assert again.facts["verifier"] == "calculator+value"
    learnt = load_file(student / VALUE / NUMBERS)["weight"]
    assert torch.equal(begun_from(student, RunFolder(run).config()), learnt)
    with torch.no_grad():  # what it carries is of other weights then, and says nothing
        loaded.model.get_input_embeddings().weight.add_(1e-3)
    loaded.engine.set_policy(None, 1)
    trained_on = alphazero.search(QUESTION, model=loaded, simulations=2, progress=False)
    assert trained_on.tree.V[-1] is None
    config, path = with_model(str(student), [], lambda layers: load_answering(overrides=layers))
    _, answerer = load_models(config, "mcts", path, None, None, None)
    assert answerer.verifier.name == "calculator+value"
    assert carried_value(config.changed(engine={"backend": "vllm"}), student)[1] is None
    for kind in SUFFIXES:
        assert export(run, kind, tmp_path / f"{kind}{SUFFIXES[kind]}") >= 0


def test_an_adapter_and_what_it_is_merged_to_carry_the_value_too(tmp_path, capsys):
    run, out = tmp_path / "run-001", tmp_path / "merged"
    flags = [*SMALL, *METHODS["alphazero"], *"--num-examples 8 --set train.adapter=lora".split()]
    assert train_main([*flags, "--checkpoint-dir", str(tmp_path), "-q"]) == 0
    merge = f"merge --adapter {run / 'adapter'} -q --out".split()
    assert main([*merge, str(out)]) == 0
    found = [
        alphazero.search(QUESTION, model=folder, simulations=6, progress=False)
        for folder in (run / "student", run / "adapter", out)
    ]
    assert found[0].tree.V[1] is not None
    for one in found:  # a state has one value, however the student is stored
        assert one.tree.text[1] == found[0].tree.text[1]
        assert one.tree.V[1] == pytest.approx(found[0].tree.V[1], abs=1e-4)
    learnt = load_file(run / "adapter" / VALUE / NUMBERS)["weight"]
    assert torch.equal(begun_from(run / "adapter", RunFolder(run).config()), learnt)
    # A value over other states is none of the sum's.
    file = run / "adapter" / "adapter_model.safetensors"
    save_file({name: tensor + 1e-3 for name, tensor in load_file(file).items()}, file)
    capsys.readouterr()
    assert main([*merge, str(tmp_path / "other")]) == 2
    assert "was learnt with another adapter" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_asked_to_stop_it_ends_early_and_can_be_resumed(tmp_path, monkeypatch):
    words = [word for word in [*SMALL, *ROWS] if "=" in word]
    config = grpo_config(["student=embedded", "teachers.tier=embedded", *words])
    config = config.changed(train={"num_examples": 16, "eval_size": 4, "save_every": 8})
    folder = RunFolder(tmp_path / "run-001")
    folder.path.mkdir()
    before_the_first_round = Run(prepare(config), lambda: True)
    before_the_first_round.load()
    assert before_the_first_round.execute(folder) is None
    assert "before" not in folder.read_card()
    asked = False
    run = Run(prepare(config), lambda: asked)
    run.load()
    shown = Recorder.tree

    def after_ten(recorder, tree):
        nonlocal asked
        shown(recorder, tree)
        asked = len(list(read(folder.journal))) >= 10

    monkeypatch.setattr(Recorder, "tree", after_ten)
    assert run.execute(folder, resume=True) is None
    assert 10 <= len(list(read(folder.journal))) < 16
    monkeypatch.undo()
    told = [record["cost"]["sampled_tokens"] for record in read(folder.journal)]
    ledger = TeacherLedger(calls=1000, used=1000)  # of the processes before
    write_json(folder.path / LEDGERS, {"scripted": asdict(ledger)})
    stored = folder.config()
    again = Run(prepare(stored.changed(train={"tokens": 10**6})))
    again.load()
    started = []
    monkeypatch.setattr(Progress, "start", lambda shown, *given, **more: started.append(given))
    card = again.execute(folder, resume=True)
    monkeypatch.undo()
    assert started[0] == (10**6, sum(told))  # all trees that are there, of an open round too
    assert card["teachers"]["scripted"]["proposals_used"] >= 1000
    assert len(list(read(folder.journal))) == 16


def test_a_run_whose_rows_or_base_changed_is_not_gone_on_with(tmp_path, capsys):
    """Under LoRA a checkpoint has the adapter alone, which would go on over whatever is there."""
    rows, base, run = tmp_path / "rows.jsonl", tmp_path / "base", tmp_path / "runs" / "run-001"
    lines = [{"question": f"{i} coins and 4 more?", "answer": str(i + 4)} for i in range(60)]
    write_jsonl(rows, lines)
    shutil.copytree(PACKAGED, base)
    sets = f"models.embedded.path={base} train.adapter=lora train.preflight=0 "
    sets += "train.validation_size=0 train.demonstrations=0 train.keep_checkpoints=1"
    flags = [word for one in sets.split() for word in ("--set", one)]
    flags += f"--source {rows} --num-examples 8 --save-every 4 --eval-size 4".split()
    train = f"--model embedded --use-grpo --out {run.parent} -q".split()
    assert train_main([*train, *flags]) == 0
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-8"]
    card = card_of(run)
    del card["after"]  # as where it ended before its end
    (run / "run.json").write_text(json.dumps(card))

    def goes_on(said=None):
        capsys.readouterr()
        assert train_main(f"--resume {run} -q".split()) == (2 if said else 0)
        told = capsys.readouterr().err
        assert said is None or (said in told and told.count("\n") == 1)

    answers = rows.read_text()
    rows.write_text(answers.replace('"answer": "1', '"answer": "2'))
    goes_on("other questions or answers than when the run in")
    rows.write_text(answers)
    file = base / "model.safetensors"
    weights = load_file(file)
    kept = weights["model.norm.weight"].clone()
    weights["model.norm.weight"] *= 2
    save_file(weights, file, {"format": "pt"})
    goes_on("has other weights than when the run in")
    save_file(weights | {"model.norm.weight": kept}, file, {"format": "pt"})
    goes_on()


def test_a_question_that_does_not_fit_is_recorded_and_the_run_goes_on(tmp_path):
    flags = [
        *SMALL,
        *UPDATES,
        *"--num-examples 8 --set engine.max_context=48 --set search.max_tokens=20".split(),
    ]
    flags += ["--set", "train.preflight=0"]  # so few tokens cut every response
    assert (
        train_main(
            [*flags, *f"--set train.demonstration_share=0 --checkpoint-dir {tmp_path}".split()]
        )
        == 0
    )
    ended = [r["ended_by"] for r in read(tmp_path / "run-001" / "journal.jsonl")]
    assert len(ended) == 8
    assert any(reason.startswith("failed: prompt has") for reason in ended)
    assert any(reason == "simulations" for reason in ended)


def test_the_untrained_student_is_kept_when_no_checkpoint_beats_it(tmp_path):
    flags = """
        --set train.keep_best=true --set train.optimizer.learning_rate=0.5 --num-examples 8
    """.split()
    assert train_main([*SMALL, *UPDATES, *flags, "--checkpoint-dir", str(tmp_path)]) == 0
    card = card_of(tmp_path / "run-001")
    assert card["kept"].startswith("best checkpoint: the untrained student (validation")
    assert card["after"]["correct"] == card["before"]["correct"]


def test_of_equally_good_checkpoints_the_earliest_is_kept(tmp_path, monkeypatch):
    run = Run(prepare(grpo_config(["student=embedded"])))
    run.load()
    recorder, scores = run.recorder(RunFolder(tmp_path)), iter([0.5, 0.5, 0.75, 0.75, 0.25])
    monkeypatch.setattr(recorder, "evaluate", lambda tasks: None)
    monkeypatch.setattr(recorder, "score", lambda answers: next(scores))
    best = []
    for rounds_done in range(5):
        recorder.validate(rounds_done)
        best.append(recorder.best)
    assert best == [(0.5, 0), (0.5, 0), (0.75, 2), (0.75, 2), (0.75, 2)]


@pytest.mark.parametrize(
    "method, student, questions, enough",
    CASES["short runs"],
)
def test_a_run_too_short_to_gain_anything_says_so(method, student, questions, enough):
    """As with `--save-every 25`; a run of `enough` questions makes the updates that were measured."""
    own = [f"train.method={method}", f"student={student}", f"train.num_examples={questions}"]
    short = [] if questions == 4800 else ["train.save_every=25"]
    run = Run(prepare(load_training(overrides=[*own, *short, "problems.source=embedded"])))
    said = run.few_updates()
    assert bool(said) is (enough is not None)
    assert enough is None or said.endswith(f"--num-examples {enough:,}")


RFT = pytest.mark.parametrize("whole_run", ["rft"], indirect=True, scope="module")


@RFT
def test_a_finished_run_is_not_trained_again(whole_run, capsys):
    run, _ = whole_run
    before = (run / "run.json").read_bytes()
    (run / "report.html").unlink()  # as where a crash came between the results and their page
    assert train_main(["--resume", str(run)]) == 0
    assert "this run is finished" in capsys.readouterr().err
    assert (run / "run.json").read_bytes() == before
    assert (run / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    "flags",
    [
        [*"--use-grpo --set train.credit=step --set train.groups=tree".split(), *ROWS],
        ["--use-ppo", *ROWS, *"--set train.adapter=lora --set train.critic_rounds=0".split()],
    ],
)
def test_variants_train(flags, tmp_path):
    assert (
        train_main([*SMALL, *f"--num-examples 8 --checkpoint-dir {tmp_path}".split(), *flags]) == 0
    )
    assert card_of(tmp_path / "run-001")["search_cost"]["sampled_tokens"] > 0


@RFT
def test_a_run_starts_from_the_student_of_another(whole_run, tmp_path, capsys):
    run, _ = whole_run
    flags = [
        *SMALL,
        *UPDATES,
        *f"--num-examples 8 --model {run / 'student'} --checkpoint-dir {tmp_path}".split(),
    ]
    assert train_main(flags) == 0
    assert f"student {run / 'student'} (" in capsys.readouterr().err
    card = card_of(tmp_path / "run-001")
    assert card["started_from"] == str(run / "student")
    assert card["before"]["correct"] == card_of(run)["after"]["correct"]


def unfinished(run, to):
    """A copy of a run as it was before its last evaluation."""
    shutil.copytree(run, to)
    card = card_of(run)
    del card["after"]
    (to / "run.json").write_text(json.dumps(card))
    return to


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
    same, whole = weights(copy), weights(run)
    assert all(torch.equal(same[name], whole[name]) for name in whole)


def test_a_kill_between_a_checkpoint_and_its_best_weights_loses_neither(monkeypatch, tmp_path):
    scores = iter(number / 10 for number in range(10))
    monkeypatch.setattr(Recorder, "score", lambda recorder, answers: next(scores))
    flags = [
        *SMALL,
        *METHODS["rft"],
        *f"--set train.keep_best=true --checkpoint-dir {tmp_path / 'whole'}".split(),
    ]
    assert train_main(flags) == 0
    run = RunFolder(tmp_path / "whole" / "run-001")
    copy = RunFolder(unfinished(run.path, tmp_path / "run-001"))
    copy.best.write_bytes(b"of an earlier round")
    assert train_main(["--resume", str(copy.path)]) == 0
    # The order of their metadata is nobody's.
    best, undisturbed = load_file(copy.best), load_file(run.best)
    assert best.keys() == undisturbed.keys() and all(
        torch.equal(best[name], undisturbed[name]) for name in best
    )
    assert all(
        torch.equal(one, weights(run.path)[name]) for name, one in weights(copy.path).items()
    )
