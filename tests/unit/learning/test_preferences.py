"""Step preferences in a file: rows, the pairs that they make, and `prm --data FILE.jsonl`."""

import json

import pytest
from tables import table, write_jsonl

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.problems.load import tasks_of
from alphazero_llm_trainer.runs.critic_data import example_of, read_questions, with_step_labels
from alphazero_llm_trainer.runs.preferences import Preference, read_preferences

ROW = {
    "prompt": "How many?",
    "chosen": ["3 * 4 = 12", "#### 12"],
    "rejected": ["3 * 4 = 12", "#### 1"],
}


def row_of(**changed):
    return json.dumps(ROW | changed).encode()


def preference(**changed):
    return Preference.model_validate_json(row_of(**changed))


@pytest.mark.parametrize(
    "chosen, rejected",
    [
        (ROW["chosen"], ROW["rejected"]),
        ("3 * 4 = 12\n#### 12", "3 * 4 = 12\n#### 1"),
        (ROW["chosen"], "3 * 4 = 12\n#### 1\n"),
    ],
)
def test_lists_and_texts_make_the_same_pair_of_steps(chosen, rejected, student):
    row = preference(chosen=chosen, rejected=rejected)
    line, eos = student.encode("3 * 4 = 12\n"), student.engine.eos_id
    better, worse = ((*line, *student.encode(text), eos) for text in ("#### 12", "#### 1"))
    assert set(row.pairs(student)) == {(better, worse)}


def test_the_first_step_that_differs_and_the_ends_are_compared(student):
    row = preference(chosen=["1", "2", "3"], rejected=["1", "4"])
    a, b, c, d = (tuple(student.encode(f"{text}\n")) for text in "1234")
    assert list(row.pairs(student)) == [(a + b, a + d), (a + b + c, a + d)]
    unknown = preference(chosen=["x"], rejected=["y"])  # words that this student lacks
    with pytest.raises(DataError, match="one reading of both"):
        list(unknown.pairs(student))


@pytest.mark.parametrize("line, word", table("rows")["preferences"])
def test_a_row_that_is_none_is_named_with_its_line_and_field(line, word, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(row_of() + b"\n\n" + line.encode() + b"\n")
    with pytest.raises(DataError, match=f"^{file} line 3: .*{word}.*$"):
        list(read_preferences(file))


def test_rejected_steps_are_wrong_and_chosen_ones_right(tmp_path, student):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(row_of() + b"\n" + row_of(rejected=["3 * 4 = 11"]))
    [question] = read_questions([file], 1)
    config = load_config(recipe="critic.yaml").train.critic
    example = with_step_labels(example_of(question, student, config))
    labels = sorted((state.target, state.weight) for state in example.states.values())
    assert labels == [(0.0, 1.0)] * 2 + [(1.0, 1.0)] * 2 and len(example.pairs) == 3


def test_a_prm_learns_from_a_file(tmp_path, capsys):
    config, file = load_config(overrides=["student=embedded"]), tmp_path / "rows.jsonl"
    lines = []
    for task in tasks_of(config, "train", 60):
        steps, asked = task.solution.split("\n"), task.problem.question
        wrong = [*steps[:-1], "#### 1000"]
        lines.append({"prompt": asked, "chosen": steps, "rejected": wrong})
    write_jsonl(file, lines)
    out, quick = str(tmp_path / "prm"), ["--set", "train.optimizer.epochs=1"]
    assert main([*f"prm --model embedded --data {file} --out {out}".split(), *quick, "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert sum(card["questions"].values()) == 60 and card["pairs"]["test"] > 0
    assert card["sampled_tokens"] == 0
    assert main(f"value --model embedded --data {file} --out {tmp_path / 'value'}".split()) == 2
    assert "step preferences" in capsys.readouterr().err
