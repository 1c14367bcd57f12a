"""The README's Python and its table, each as it stands."""

import re

import pytest
from finished import learnt
from tables import CHECKOUT

from alphazero_llm_trainer.cli.main import main

README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_python_of_the_readme(tmp_path, monkeypatch, capsys):
    [block] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    printed = capsys.readouterr().out
    assert learnt(printed)
    words = printed.split()
    assert (words[0], words[-1]) == ("14", "16")


@pytest.mark.slow
def test_the_table_of_the_readme(tmp_path, capsys):
    [table] = re.findall(r"```text\n(method .*?)```", README, re.DOTALL)
    [flags] = re.findall(r"\(`(--source embedded .*?)`\)", README, re.DOTALL)
    assert main(["eval", *flags.split(), "--out", str(tmp_path / "out")]) == 0
    assert table in capsys.readouterr().out
