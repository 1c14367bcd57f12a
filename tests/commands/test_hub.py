"""What is said where the hub can't be asked, and how soon."""

import os
import socket
import time

import datasets
import pytest
from huggingface_hub import constants

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config import hub


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path):
    """A hub at an address where nothing listens, an empty cache, and no folder with rows."""
    for variable in (
        "ALPHAZERO_DATA_DIR",
        "HF_HUB_OFFLINE",
        *(name for name in os.environ if "proxy" in name.lower()),
    ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    hub.hub_answers.cache_clear()
    yield
    hub.hub_answers.cache_clear()
    os.environ.pop("HF_HUB_OFFLINE", None)


def test_an_address_that_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(hub, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.perf_counter()
        assert not hub.hub_answers(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert time.perf_counter() - began < 2


COMMANDS = [
    "eval --source gsm8k --num 2 --model embedded".split(),
    "eval --source embedded --num 2 --model org/none".split(),
    "eval --source embedded --num 2 --prm org/none".split(),
    "serve --model embedded --port 0 --prm org/none".split(),
    ["fetch", "qwen3-0.6b"],
]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
def test_without_the_hub_the_error_comes_at_once(
    command,
    named,
    capsys,
    monkeypatch,
):
    """The libraries' own retries take 26 and 61 seconds, and PyTorch takes its own."""
    monkeypatch.setattr("alphazero_llm_trainer.policy.student.Student.__init__", None)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", named)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", named)
    began = time.perf_counter()
    assert main(command) == 2
    assert time.perf_counter() - began < 10  # other tests share the cores
    reason = "HF_HUB_OFFLINE is set" if named else "http://127.0.0.1:9 doesn't answer"
    assert reason in capsys.readouterr().err
