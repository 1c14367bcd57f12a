"""A game of your own as a source, in one file: `--source examples/horn.py:Horn`.

    uv run alphazero-llm-trainer sft --source examples/horn.py:Horn --model small --out runs/horn
    uv run alphazero-llm-trainer train --config alphazero --source examples/horn.py:Horn --model RUN

From letters that are known, rules derive further letters: `5 steps: b+k to q: k>d b+d>q d>m ...`. A
step is a rule whose letters are known, such as `b+d>q`, and its letter is known then. The letter
that is asked for ends the game; it is a chain of rules away, and most rules lead elsewhere. One
step more is allowed than the chain has, so that a wrong step can hardly be mended. Random legal
play derives the letter in about 3% of the games. `exact_value` knows which steps lead on.
"""

import random
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.grading.graders import Grade, Verdict
from alphazero_llm_trainer.problems.source import Source, split_of
from alphazero_llm_trainer.types import Problem, Task

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CHAIN = (4, 6)  # rules of the chain to the letter, at least and at most
OTHERS = 9  # rules beside the chain
SPARE = 1  # steps that are allowed beyond the chain's
RANDOM_STEPS = (2, 7)  # of a demonstration

Rule = tuple[str, str]  # the letters it needs, `b+d`, and the one that it derives


def write_rule(rule: Rule) -> str:
    return ">".join(rule)


def join(letters: Iterable[str]) -> str:
    return "+".join(sorted(letters))


def make_rules(rng: random.Random) -> tuple[list[str], list[Rule], list[Rule]]:
    """Two known letters, the chain's rules, the last of which derives the goal, and all rules."""
    unused = rng.sample(LETTERS, len(LETTERS))
    known, unused = unused[:2], unused[2:]
    reached, chain = list(known), list[Rule]()
    for _ in range(rng.randint(*CHAIN)):
        # The first rule needs both letters, a later one the letter before it and perhaps another.
        needs = known if not chain else [reached[-1]]
        if chain and rng.random() < 0.6:
            needs = [*needs, rng.choice(reached[:-1])]
        chain.append((join(needs), unused.pop()))
        reached.append(chain[-1][1])
    within = reached[:-1]  # what the other rules need: nothing leads on from the goal
    rules = list(chain)
    for _ in range(OTHERS):
        rules.append((join(rng.sample(within, rng.choice((1, 2)))), unused.pop()))
        if rng.random() < 0.7:
            within.append(rules[-1][1])
    rng.shuffle(rules)
    return known, chain, rules


def write_question(steps: int, known: Iterable[str], goal: str, rules: Iterable[Rule]) -> str:
    return f"{steps} steps: {join(known)} to {goal}: {' '.join(map(write_rule, rules))}"


@lru_cache(4096)
def read_question(question: str) -> tuple[int, frozenset[str], str, tuple[Rule, ...]]:
    """The steps allowed, the letters known, the goal, and the rules."""
    match = re.fullmatch(r"(\d+) steps: ([a-z+]+) to ([a-z]): (.*)", question)
    if match is None:
        raise DataError(f"{question!r} is no question of horn: see `write_question`")
    rules = tuple((rule.split(">")[0], rule.split(">")[1]) for rule in match[4].split(" "))
    return int(match[1]), frozenset(match[2].split("+")), match[3], rules


def legal(rules: Iterable[Rule], known: frozenset[str]) -> list[Rule]:
    """The rules that derive something new from the letters known."""
    return [rule for rule in rules if rule[1] not in known and known.issuperset(rule[0].split("+"))]


def play(question: str, steps: Sequence[str]) -> frozenset[str] | None:
    """The letters known after `steps`, None where one isn't legal or the game was over before
    it."""
    allowed, known, goal, rules = read_question(question)
    if len(steps) > allowed:
        return None
    for step in steps:
        possible = {write_rule(rule): rule[1] for rule in legal(rules, known)}
        if goal in known or step.strip() not in possible:
            return None
        known |= {possible[step.strip()]}
    return known


@lru_cache(65536)
def steps_to(question: str, known: frozenset[str], left: int) -> int | None:
    """The fewest steps that derive the goal, None where more are needed than are left."""
    _, _, goal, rules = read_question(question)
    if goal in known:
        return 0
    if not left:
        return None
    further = [steps_to(question, known | {rule[1]}, left - 1) for rule in legal(rules, known)]
    return min((steps + 1 for steps in further if steps is not None), default=None)


def exact_value(problem: Problem, steps: Sequence[str], discount: float = 1.0) -> float:
    """`discount` to the power of the steps that are still needed, 0 where too few are left."""
    known = play(problem.question, steps)
    if known is None:
        return 0.0
    needed = steps_to(problem.question, known, read_question(problem.question)[0] - len(steps))
    return 0.0 if needed is None else discount**needed


class Horn(Source):
    """Generated problems of the game, disjoint by their questions' hash."""

    name = "horn"
    endless = True
    plays = True
    deterministic = True
    scratch = "sft_pancake.yaml"
    system_prompt = "Derive the letter, a rule a line."

    def load(self, split: str, count: int, start: int = 0) -> list[Task]:
        return [self.build(split, index) for index in range(start, start + count)]

    def build(self, split: str, index: int) -> Task:
        rng = random.Random(f"horn/{split}/{index}")
        while True:
            known, chain, rules = make_rules(rng)
            goal = chain[-1][1]
            question = write_question(len(chain) + SPARE, known, goal, rules)
            if split_of(question) == split:
                return Task(Problem(f"horn/{split}/{index}", question, self.name), goal, None)

    def demonstrations(self, count: int) -> list[Task]:
        """Random legal games: the goal is the letter that the last step happened to derive, so that
        they show what is legal, and not where to go.
        """
        tasks = list[Task]()
        for index in range(count):
            rng = random.Random(f"horn/demonstration/{index}")
            question = ""
            while not question or split_of(question) != "train":
                letters, _, rules = make_rules(rng)
                known, steps = frozenset(letters), list[Rule]()
                for _ in range(rng.randint(*RANDOM_STEPS)):
                    possible = legal(rules, known)
                    if possible:
                        steps.append(rng.choice(possible))
                        known |= {steps[-1][1]}
                question = write_question(len(steps), letters, steps[-1][1], rules)
            problem = Problem(f"horn/demonstration/{index}", question, self.name)
            tasks.append(Task(problem, steps[-1][1], "\n".join(map(write_rule, steps))))
        return tasks

    def check_step(self, problem: Problem, steps: Sequence[str]) -> bool:
        return play(problem.question, steps) is not None

    def state(self, problem: Problem, steps: Sequence[str]) -> str | None:
        """The letters known, until the goal is."""
        known = play(problem.question, steps)
        return None if known is None or read_question(problem.question)[2] in known else join(known)

    def grade_many(self, pairs: Sequence[tuple[str, Task]], strict: bool = False) -> list[Grade]:
        """Correct where every line is legal and the last one derives the goal."""
        grades = list[Grade]()
        for response, task in pairs:
            steps = [line for line in response.splitlines() if line.strip()]
            known = play(task.problem.question, steps)
            right = known is not None and task.gold in known
            answer = str(task.gold) if right else None
            grades.append(Grade(Verdict.CORRECT if right else Verdict.WRONG, answer))
        return grades

    def vocabulary_texts(self) -> Iterable[str]:
        """Every letter, digit and mark."""
        yield f"0123456789 steps: {'+'.join(LETTERS)} to a: " + " ".join(
            f"{x}>{x}\n" for x in LETTERS
        )
