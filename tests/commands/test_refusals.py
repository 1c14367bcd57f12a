"""What a user can get wrong ends in one sentence that names the field, and exit code 2: no
traceback, nothing half written. The cases are in cases/refusals.yaml.
"""

import shlex

import pytest
from huggingface_hub import constants
from tables import table, write_jsonl

from alphazero_llm_trainer import live
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.cli.vf_eval import main as run
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.environment.argv import OUR_ID
from alphazero_llm_trainer.errors import ConfigError

CASES = table("refusals")
KEYS = (
    "OPENROUTER_API_KEY",
    "ALPHAZERO_API_KEY",
    "PRIME_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
)
ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(60)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder with the cases' files, and nothing of the user's own in reach."""
    work = tmp_path / "work"
    for name, text in CASES["files"].items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text, encoding="latin-1")
    write_jsonl(work / "rows.jsonl", ROWS)
    monkeypatch.chdir(work)
    monkeypatch.setattr(live, "BEAT", 1e9)  # this machine may be slow
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("HF_HUB_CACHE", "HF_TOKEN_PATH"):
        monkeypatch.setattr(constants, name, str(tmp_path / name))
    return work


def refused(words, capsys):
    """The one sentence that a command line is refused with."""
    capsys.readouterr()
    ours = words[0] == "vf-eval"
    try:
        code = run([OUR_ID, *words[1:]]) if ours else main(words)
    except SystemExit as stop:
        code = stop.code
    lines = capsys.readouterr().err.splitlines()
    begins = "vf-eval: " if ours else "error: "
    [said] = [line for line in lines if not line.startswith(("loading", "reading"))]
    assert code == 2 and said.startswith(begins) and len(said) < 1000, said
    return said


@pytest.mark.parametrize("line", CASES["commands"])
def test_a_command_line_that_cannot_be(line, folder, monkeypatch, capsys):
    """A run and its dry run end alike, before PyTorch is loaded."""
    words, before = shlex.split(line), set(folder.rglob("*"))
    ways = [words]
    if words[0] == "eval":
        monkeypatch.setattr("alphazero_llm_trainer.policy.student.Student.__init__", pytest.fail)
    runs = words[0] == "train" and line not in CASES["late"]
    if runs or {"hidden", "calc"} & {*words}:
        monkeypatch.setattr(live.Progress, "load", pytest.fail)
    ways += [[*words, "--dry-run"]] if runs else []
    said = [refused(way, capsys) for way in ways]
    assert said[0] == said[-1]
    assert all(name in said[0] for name in CASES["commands"][line]), said[0]
    if words[0] != "vf-eval":  # verifiers makes its folder first
        assert set(folder.rglob("*")) == before, "bad input left something behind"


def one_sentence(error, names):
    text = str(error.value)
    assert "\n" not in text and 10 < len(text) < 400 and "sesame" not in text, text
    assert all(name in text for name in names), text


@pytest.mark.parametrize("override", CASES["settings"])
def test_a_setting_that_cannot_be(override):
    with pytest.raises(ConfigError) as error:
        load_config(overrides=[override])
    one_sentence(error, CASES["settings"][override])


@pytest.mark.parametrize("text", CASES["documents"])
def test_a_configuration_file_that_cannot_be(text, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(file)
    one_sentence(error, CASES["documents"][text])
