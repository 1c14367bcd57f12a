"""What chat models are told before a problem, by how its answers are compared."""

from __future__ import annotations

_STEPS = (
    "Write one short step a line. Write no headings and no lists. End with one line that holds only `#### {answer}`"
)

SYSTEM_PROMPT = (
    "Solve the word problem step by step. Write one short step a line, each with its calculation, for example "
    "`16 - 3 = 13`. Write no headings and no lists. End with one line that holds only `#### N`, where N is the final "
    "answer as a plain number without units."
)
MATH_PROMPT = (
    "Solve the problem step by step. Write one short step a line. Write no headings and no lists. End with one line that"
    " holds only `#### A`, where A is the final answer in LaTeX without dollar signs, in the form that was asked for."
)
HOTPOTQA_PROMPT = (
    "Answer the question from the paragraphs above it. Write one short step a line, each a fact and the title of its"
    " paragraph. Write no headings and no lists. End with one line that holds only `#### A`, where A is the answer in as"
    " few words as possible: a name, a date, a number, or yes or no."
)
WORDS_PROMPT = (
    "Answer the question. " + _STEPS.format(answer="A") + ", where A is the answer in as few words as possible."
)
OPEN_PROMPT = (
    "Solve the problem step by step. "
    + _STEPS.format(answer="A")
    + ", where A is the final answer in the form that was"
    " asked for."
)
CHOICE_PROMPT = "Answer the question. " + _STEPS.format(answer="A") + ", where A is the letter of the right choice."
NUMBERS_PROMPT = (
    "Use every given number once to make the target with + - * and /. Write one step a line: an operation on two numbers"
    " that are left, its result, and after a comma the numbers left then, for example `6 * 4 = 24, 1 3`. Results are"
    " whole and above 0. End with one line that holds only `#### T`, where T is the target."
)

SYSTEM_PROMPTS = {
    "numbers": SYSTEM_PROMPT,
    "math": MATH_PROMPT,
    "words": WORDS_PROMPT,
    "exact": OPEN_PROMPT,
    "choice": CHOICE_PROMPT,
}
