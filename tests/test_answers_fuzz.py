"""The fuzzer of answers in a short form: it sees faults, and there are none but the limits that it names."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alphazero_llm_trainer import answers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import answers_fuzz
from benchmarks.answers_fuzz import PIECES, Watch, faults, fuzz, main, totals

TEXTS = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(TEXTS, TEXTS)
def test_pieces_of_answers_break_no_law(a: str, b: str) -> None:
    assert list(faults(a, b, Watch())) == []


def test_a_short_run_has_no_fault_but_the_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "fuzz.json"
    main(["--num", "4000", "--seed", "3", "--out", str(out)])
    result = json.loads(out.read_text())
    assert result["command"] == "uv run python benchmarks/answers_fuzz.py --num 4000 --seed 3"
    assert result["random_texts"] + sum(tally["pairs"] for tally in result["kinds"].values()) == result["num"] == 4000
    assert result["broken_laws"] == {}
    wrong = {
        name: tally["examples"]
        for name, tally in result["kinds"].items()
        if not name.startswith("limit:") and (tally["false_positives"] or tally["false_negatives"])
    }
    assert wrong == {}
    assert result["totals"]["limits"]["pairs"] > 0
    assert "laws broken: none" in capsys.readouterr().out


@pytest.mark.parametrize(("says", "fault"), [(True, "false_positives"), (False, "false_negatives")])
def test_a_blind_comparison_is_seen(monkeypatch: pytest.MonkeyPatch, says: bool, fault: str) -> None:
    monkeypatch.setattr(answers_fuzz, "SHARE_OF_FORMULAS", 0.0)
    monkeypatch.setattr(answers, "equal", lambda a, b: says)
    found = fuzz(2000, 1)
    sums = totals(found["kinds"], limits=False)
    assert sums[fault] > 0.3 * sums["pairs"] and sums["false_positives"] * sums["false_negatives"] == 0
    assert set(found["broken_laws"]) == {"an answer does not equal itself"}


def test_a_key_that_changes_again_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "normalize", lambda text: text[1:])
    assert "normalize is not idempotent" in set(faults("abc", "abd", Watch()))
