"""What chat models are told before a problem, by how its answers are compared.

No text has a placeholder that a model could copy as its answer, nor numbers: a chat model writes
them down. Step-level search cuts a response at its line ends, so all ask for steps on lines of
their own.
"""

from __future__ import annotations

_LAST = "Then write the last line: #### and "

SYSTEM_PROMPT = (
    "You are a careful math tutor. Solve the problem step by step in a few short lines. "
    f"{_LAST}the number that answers the question."
)
MATH_PROMPT = (
    "Solve the problem step by step in short lines. "
    f"{_LAST}the final answer alone, in LaTeX without dollar signs, in the form that was asked for."
)
HOTPOTQA_PROMPT = (
    "Answer the question from the paragraphs above it. First write the facts that it needs, each "
    "on one line with the title of its paragraph. "
    f"{_LAST}the answer in as few words as possible: a name, a date, a number, yes or no."
)
WORDS_PROMPT = (
    "Answer the question step by step in a few short lines. "
    f"{_LAST}the answer in as few words as possible."
)
OPEN_PROMPT = (
    "Solve the problem step by step in a few short lines. "
    f"{_LAST}the final answer in the form that was asked for."
)
CHOICE_PROMPT = (
    "Answer the question step by step in a few short lines. "
    f"{_LAST}the letter of the right choice alone."
)
NUMBERS_PROMPT = (
    "Use every given number once to make the target with + - * and /. Write one step a line: an "
    "operation on two numbers that are left, its result, and after a comma the numbers left then, "
    f"such as `6 * 4 = 24, 1 3`. Results are whole and above zero. {_LAST}the target."
)
PANCAKE_PROMPT = (
    "Bring the row of numbers into ascending order by flips: a flip turns round the first k of "
    "them. Write one flip a line, k and after a colon the row then, such as `3:241356` for a flip "
    "of `142356`. Stop with the row in order, after no more flips than are allowed."
)
HIDDEN_PROMPT = (
    "Bring the row of numbers into ascending order by flips: a flip turns round the first k of "
    "them. Write k alone, and you are told the row then. Stop with the row in order, after no more "
    "flips than are allowed."
)
CALC_PROMPT = (
    "Solve the problem step by step. Call the tool `calculate` for every calculation, one call a "
    f"turn. {_LAST}the number that answers the question."
)

SYSTEM_PROMPTS = {
    "numbers": SYSTEM_PROMPT,
    "math": MATH_PROMPT,
    "words": WORDS_PROMPT,
    "exact": OPEN_PROMPT,
    "choice": CHOICE_PROMPT,
    "mixed": OPEN_PROMPT,
}
