from fractions import Fraction

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from alphazero_llm_trainer import answers
from alphazero_llm_trainer.errors import DataError

SPELLINGS = {  # key -> what it is made of
    "72": ("72", "  72 ", "72.", "**72**", "`72`"),
    "7": ("007", "10 - 3 = 7", "$10 - $3 = $7"),
    "1234": ("1,234", "1{,}234", r"1\,234", "1\u202f234"),
    "18": (
        r"\$18", "$18$", "18 dollars per day", "18 dollars every day at the farmers' market.",
        "18 dollars for one cup", "18 dollars!", "18.00",
    ),
    "5": (
        "US$5", "5 USD", "€5", "USD 5", "5km", "5 km/h", r"5\text{ km}", "5 degrees Celsius", "5 p.m.", "5th",
        "5 °C", "5¢", "5 mm^2", "5元", "+5", "5.", "x = 5", "x = 10/2 = 5", "Total cost = $5", "about 5", "Total: 5",
        "(5)", r"\boxed{5}", "００5",
    ),
    "50": ("50%", r"50\%"),
    "25": ("25 m²", "25 square feet"),
    "90": (r"90^\circ", r"90^{\circ}"),
    "9": ("9 (apples)", "9 apples (in all)", r"9 \text{ (m/s)}"),
    "24": ("2 dozen eggs", r"2\text{ dozen}"),
    "-5": ("-5", "- 5", "−5", "–5", "-$5", "$-5"),
    "3/4": ("3/4", "6/8", "3 / 4", r"\frac{3}{4}"),
    "-3/4": (r"\dfrac{-6}{8}", r"-\frac34"),
    "3/2": (r"1\frac{1}{2}", "1 1/2", "1½"),
    "1/2": ("½", "1⁄2", "0.50", ".5", r"**\boxed{\frac12}**"),
    "3, 4": ("3, 4", "$3$, $4$"),
    "5 i": ("5 i", r"5\mathrm{i}"),
    "5!": ("5!", "5 !"),
    "5^2": ("5^2", "5²"),
    "": ("", "..."),
    "0": ("-0",), "7000000": ("7,000,000",), "11111100": (r"11,\! 111,\! 100",), "12, 34": ("12,34",),
    "1234, 567": ("1234,567",), "(1, 234)": ("(1,234)",), "1234234234234234": ("1" + 5 * ",234",),
    "2469/2": ("$1,234.50",), "3": ("3 times",), "1/4": ("0.25 (sq. ft.)",), "2500000": ("2.5 million dollars",),
    "270/7": (r"\frac{270}7\text{ degrees}",), "-3/2": ("-1 1/2",), "1/10": ("0.1",), "1500000": ("1.5e6",),
    "300000": (r"3 \times 10^{5}",), "30": (r"\theta_1 = 30^\circ",), "x+y+z=0": ("x + y + z = 0",),
    "xy=5": ("xy = 5",), "2x=5": ("2x = 5",), "3, 4=5": ("3, 4 = 5",), "f(x)=5": ("f(x) = 5",),
    r"\not=5": (r"\not= 5",), "2=5": ("2 = 5",), "5(x)": ("5 (x)",), "5(mod n)": ("5 (mod n)",),
    "5-cost": ("5 - cost",), "5 6": ("5$6",), "6-5i": ("6 - 5i",), "10^6": ("10⁶",), "paris": ("Paris.",),
    "evelyn": (r"\text{Evelyn}",), "new york": ("New  York",),
}  # fmt: skip
# Not one number, or more than a number: before an equals sign stands more than a name; terms,
# factorials and factors are no units.
AS_THEY_STAND = (
    "1, 234", r"\frac123", "3/0", "5 and a half", "5 or 6", "x=1 or x=3", "x=3, y=5", "x>=5", "5i", "5m", "5x",
    "5 x", "5!!", "n!", "5 x^2", "5ab", "5 ab", "5 xyz", "5abc", "5abd", "5 pi", "5π", "5 a", "5(apples)",
    "5 squared", "5 plus two", "5 hundredths", "1 out of five", "50% of x", "5_8", "3:30", "12/25/2020", "3x",
    r"3\pi", r"3\sqrt{13}", "9" * 5000,
)  # fmt: skip
NORMALIZED = [(text, key) for key, texts in SPELLINGS.items() for text in texts] + [
    (text, text) for text in AS_THEY_STAND
]

EXTRACTED = [  # text, strict=False, strict=True
    (r"\boxed{she has 12}", "she has 12", "she has 12"),  # a box is taken as it stands
    ("\\boxed{7}\nQuestion: 2 + 2?\nIt is \\boxed{4}.", "7", "7"),
    ("16 - 3 = 13\n#### 13", "13", "13"),
    ("#### 5\nno, wait\n#### 6", "6", "6"),
    ("#### 1,234 apples", "1,234 apples", "1,234 apples"),
    ("#### Janet makes $18 a day", "$18", "$18"),
    ("#### 9 (apples)", "9 (apples)", "9 (apples)"),
    ("#### she has 2 dozen eggs", "2 dozen", "2 dozen"),
    ("#### not 5", "not 5", "not 5"),
    ("#### at least 5", "at least 5", "at least 5"),
    ("#### half of 6", "half of 6", "half of 6"),
    ("#### x + y = 5", "x + y = 5", "x + y = 5"),
    ("#### it is 5 i", "it is 5 i", "it is 5 i"),
    ("#### 5!", "5!", "5!"),
    ("#### f(5)", "f(5)", "f(5)"),
    ("#### 5 or 6", "5 or 6", "5 or 6"),
    ("The total is #### 7", "7", "7"),
    ("#### -5", "-5", "-5"),
    ("####7", "7", "7"),
    ("#### Paris", "Paris", "Paris"),
    (r"\boxed{3}" "\n#### 4", "4", "4"),
    ("#### 4\n" r"\boxed{3}", "4", "4"),
    ("#### Step 1: add 2\nso 9", "9", None),
    ("#### Final Answer\n" r"\boxed{18}", "18", "18"),
    ("##### 5", "5", None),
    ("#### ", None, None),
    ("3 + 4 = 7\n####", "7", None),
    (r"\boxed{2}. Then \boxed{3}", "3", "3"),
    (r"\boxed{2} and \boxed{3}", "2, 3", "2, 3"),
    (r"$x=\boxed{2}$, $\boxed{3}$, or $\boxed{4}$", "2, 3, 4", "2, 3, 4"),
    (r"\boxed{3}\quad\text{or}\quad\boxed{4}", "3, 4", "3, 4"),
    (r"\boxed{2}, so \boxed{3}", "3", "3"),
    (r"$\boxed{3}$ and $\boxed{3.0}$", "3", "3"),
    (r"\boxed{2} and \boxed{3", "2", "2"),
    (r"so $\boxed 5$. Check: 3 + 2", "5", None),
    (r"\boxed{3} and $\boxed\frac12$", r"3, \frac12", "3"),
    (r"\boxed 5 apples", "5", None),
    (r"\boxed{\frac{1}{2}} 9", r"\frac{1}{2}", r"\frac{1}{2}"),
    (r"\boxed{\text{a {b} c}}", r"\text{a {b} c}", r"\text{a {b} c}"),
    (r"\boxed{3} and \boxed{4", "3", "3"),
    (r"\boxed{} so 5", "5", None),
    ("The answer is $18.", "$18", None),
    ("The answer is 3.5. 7 is not.", "3.5", None),
    ("The answer is 5. No: the answer is 6.", "6", None),
    ("The answer is 18, because 9 + 9 is more than 4.", "18", None),
    ("The answer is that she has 18 eggs left.", "18", None),
    ("**Answer:** 18", "18", None),
    ("Answer:\n18", "18", None),
    ("I have 3. The answer is: **", "3", None),
    ("3 = 3\n#### **", "3", None),
    ("The answer is Paris.", "Paris", None),
    ("16 - 3 = 13", "13", None),
    ("16 - 3", "3", None),
    ("it drops to -5", "-5", None),
    ("it drops to −5.", "-5", None),
    ("it costs $1,234.50.", "$1,234.50", None),
    ("it costs -$5", "-$5", None),
    ("it is 35km", "35", None),
    ("from 5-7", "7", None),
    ("GPT-4", "4", None),
    ("H2O", None, None),
    ("3.14x", None, None),
    (r"so $x = \frac{3}{4}$.", "3/4", None),
    ("so 50% of them", "50%", None),
    ("so 2 dozen of them", "2 dozen", None),
    ("so 5i", None, None),
    ("so 5^2", None, None),
    ("no number", None, None),
    ("", None, None),
]


@pytest.mark.parametrize("text, key", NORMALIZED)
def test_normalize(text, key):
    assert answers.normalize(text) == key


@pytest.mark.parametrize("text, loose, strict", EXTRACTED)
def test_extract(text, loose, strict):
    assert answers.extract(text) == loose
    assert answers.extract(text, strict=True) == strict


NUMBERS = [  # text, strict=False, strict=True
    ("16 - 3 = 13\n#### 13", "13", "13"),
    (r"so it is \boxed{42}.", "42", "42"),
    (r"16 - 3 = 13, \boxed{\text{13 eggs}} and 7 more words", r"\text{13 eggs}", r"\text{13 eggs}"),
    ("16 - 3 = 13\n\n#### N", "13", None),  # the prompt's placeholder
    ("The answer is 13.\n#### n", "13", None),
    (r"\boxed{13}" "\n#### N", "13", "13"),
    ("#### 13\n#### N", "13", "13"),
    ("16 - 3 = 13\nThe final answer is the number of eggs.", "13", None),
    ("#### twelve", None, None),
    ("#### N", None, None),
    # what states several numbers, or another thing, is no number, and none of its numbers is taken
    # for it
    ("7 - 1 = 6\n#### 5 or 6", None, None),
    ("7 - 2 = 5\nThe answer is 5 or 6.", None, None),
    ("#### x + y = 5", None, None),
    ("#### 5 out of six", None, None),
    (r"The answer is 6. \boxed{5!}", "6", None),
    ("#### it is 5 i\nThe answer is 5 i", None, None),
]


@pytest.mark.parametrize("text, loose, strict", NUMBERS)
def test_extract_number(text, loose, strict):
    assert answers.extract_number(text) == loose
    assert answers.extract_number(text, strict=True) == strict


@pytest.mark.parametrize(
    "a, b, same",
    [
        ("1/2", "0.5", True),
        ("0.1", "1/10", True),
        ("0.3333333333333333", "1/3", False),
        ("9007199254740993", "9007199254740992", False),  # a float can't tell these apart
        ("50%", "0.5", False),
        ("18", "-18", False),
        ("$18.00", "18 dollars", True),
        ("9 (apples)", "9", True),
        ("x = 5", "y = 5", True),  # `problems.grading` tells equations apart
        ("2 dozen", "2", False),
        ("3, 500", "3500", False),
        ("Paris", "paris.", True),
        ("Paris", "London", False),
        ("", "", False),
        (".", "!", False),
    ],
)
def test_equal(a, b, same):
    assert answers.equal(a, b) is same
    assert answers.equal(b, a) is same


@pytest.mark.parametrize(
    "latex, formula",
    [
        (r"3\sqrt2 \text{ cm}^2", r"3\sqrt2"),
        (r"20\sqrt{3} square inches.", r"20\sqrt{3}"),
        (r"8\pi\mbox{ cm}", r"8\pi"),
        (r"(1 + \sqrt2)\ \mathrm{ft}", r"(1 + \sqrt2)"),
        (r"\text{even}", r"\text{even}"),
        (r"2\sqrt{3}x", r"2\sqrt{3}x"),
        (r"\sqrt2 \text{ dozen}", r"\sqrt2 \text{ dozen}"),
        (r"5\pi r^2", r"5\pi r^2"),
        (r"1 \text{ or } 3", r"1 \text{ or } 3"),
    ],
)
def test_units_of_formulas(latex, formula):
    assert answers.without_unit(latex) == formula


@pytest.mark.parametrize(
    "unit, end",
    [
        ("111,", "111x"),
        ("\\boxed{", ""),
        ("\\boxed 5 and ", ""),
        ("\\boxed{5} and ", ""),
        ("Answer: J. K. ", ""),
        ("answer is ", ""),
        ("#### 5\n", ""),
        ("1 apples ", ""),
    ],
)
def test_a_text_eight_times_as_long_takes_about_eight_times_as_long(unit, end):
    def read(text):
        answers.extract.__wrapped__(text + "}" * text.count("{"))
        answers.normalize(text)

    assert growth(read, unit, end) < LINEAR


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
