from fractions import Fraction

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.grading import answers, graders, tables

CASES = table("answers")
NORMALIZED = [(text, key) for key, texts in CASES["spellings"].items() for text in texts] + [
    (text, text) for text in [*CASES["as_they_stand"], "9" * 5000]
]


@pytest.mark.parametrize("text, key", NORMALIZED)
def test_normalize(text, key):
    assert answers.normalize(text) == key


@pytest.mark.parametrize("text, loose, strict", CASES["extracted"])
def test_extract(text, loose, strict):
    assert answers.extract(text) == loose
    assert answers.extract(text, strict=True) == strict


@pytest.mark.parametrize("text, loose, strict", CASES["numbers"])
def test_extract_number(text, loose, strict):
    assert answers.extract_number(text) == loose
    assert answers.extract_number(text, strict=True) == strict


@pytest.mark.parametrize("a, b, same", CASES["equal"])
def test_equal(a, b, same):
    assert answers.equal(a, b) is same
    assert answers.equal(b, a) is same


@pytest.mark.parametrize("latex, formula", CASES["units"])
def test_units_of_formulas(latex, formula):
    assert answers.without_unit(latex) == formula


@pytest.mark.parametrize("unit, end", CASES["long"])
def test_a_text_eight_times_as_long_takes_about_eight_times_as_long(unit, end):
    def read(text):
        answers.extract.__wrapped__(text + "}" * text.count("{"))
        answers.extract_choice(text)
        answers.normalize(text)
        graders.normalize_words(text)

    assert growth(read, unit, end) < LINEAR


@pytest.mark.parametrize(
    "kind, gold", [(k, g) for k, golds in CASES["kinds"].items() for g in golds]
)
def test_the_rule_that_a_gold_answer_asks_for(kind, gold):
    assert graders.kind_of(gold) == kind


def test_the_languages_of_mgsm_and_mmmlu_are_read():
    asked = (
        "ar bn de en es hi id ja ko fr ru sw te th yo zh"  # and Italian, Portuguese: with Spanish
    )
    assert set(asked.split()) < tables.LANGUAGES.keys()
    for phrase in ("La risposta è 42.", "A resposta é 42."):
        assert answers.extract(phrase) == "42"


def test_gold():
    assert answers.gold("48/2 = <<48/2=24>>24\n#### 1,024") == "1024"
    assert answers.gold("#### -3") == "-3"


@pytest.mark.parametrize(
    "text", ["", "72", "so 72\n####", "#### seventy", "#### Ann has 5", "x" * 200 + "#### 5 or 6"]
)
def test_gold_that_is_no_number(text):
    with pytest.raises(DataError, match="no number after '####': end it with"):
        answers.gold(text)


@given(st.text())
def test_any_text_is_survived(text):
    key = answers.normalize(text)
    assert answers.normalize(key) == key
    assert answers.equal(text, text) is (key != "")
    found = answers.extract(text)
    assert found is None or answers.normalize(found)
    for cut in (False, True):
        found = answers.extract_number(text, cut)
        assert found is None or answers.number(found) is not None


@given(st.integers(-(10**12), 10**12))
def test_spellings_of_an_integer_are_equal(n):
    spellings = [
        f"{n:,}",
        f"{n}.00",
        f"${n:,}",
        f"{n}%",
        f"{n} apples",
        f"{n}".replace("-", "−"),
        f"x = {n}",
    ]
    assert {answers.normalize(s) for s in spellings} == {str(n)}
    assert not answers.equal(str(n), str(n + 1))
    assert answers.equal(answers.extract(f"2 + 2 = 4\n#### {n:,}"), str(n))
    assert answers.equal(answers.extract(f"so that makes {n:,} apples."), str(n))
    assert answers.equal(answers.extract(rf"so \boxed{{{n}}}."), str(n))


@given(st.integers(-999, 999), st.integers(1, 999))
def test_fractions_are_exact(top, bottom):
    value = Fraction(top, bottom)
    sign = "-" if top < 0 else ""
    assert answers.normalize(f"{top}/{bottom}") == str(value)
    assert answers.normalize(rf"{sign}\frac{{{abs(top)}}}{{{bottom}}}") == str(value)
    assert answers.normalize(f"{top / 100:.2f}") == str(Fraction(top, 100))
