"""A journal record as the page reads it: the row of a list, and one tree's data. Plain JSON in,
plain JSON out.

A record is a mapping with `tree` (`tree.arena.Tree.to_dict`) and whatever else is known: `key`,
`problem` (`id`, `question`, `source`) or `question`, `ended_by`, `cost`, `prompt_ids`,
`policy_version`; of the choice `chosen` (its last node), `answer`, `why` and `response`, or
`served`, a server's answer with `node` for `chosen`; `search` (`rule`: ucb1, puct, gumbel, and
under a verifier open_ucb1, open_puct, gumbel or restart; `exploration`: its constant; `verifier`:
the name of the one whose scores are `prm`); `pieces` (token id -> its text).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..grading.answers import extract, normalize
from ..types import Facts, JsonObject, token_text

# What the page draws, under the names it uses. `expanded` is left out: it is the search's own
# business.
DRAWN = (
    "parent", "token_ids", "logprobs", "text", "source", "direction", "N", "W", "V", "prior", "prm",
    "samples", "verdict", "reward", "hre", "pre",
)  # fmt: skip
ROLLOUT = (
    "node",
    "token_ids",
    "logprobs",
    "text",
    "verdict",
    "reward",
    "hre",
    "pre",
    "count",
    "samples",
    "outcome",
    "mask",
)
REJECTED_VERDICT = "rejected"
LOGPROB_DIGITS = 6  # of a nat; the page shows three
QUESTION_LETTERS = 200  # of a question in the list


@dataclass(slots=True)
class NodeRow:
    """One question of the list.

    outcome: "right" or "wrong" (every sampled response is), "mixed", "ungraded", "none" (no
    response), "failed".
    right, samples: sampled responses. nodes, simulations, tokens (sampled; None: not recorded).
    answer: what a search without gold answered, else the answer of most samples (the right one
    among equals).
    answer_right: by gold, None where it is not known; share: of the samples that state it.
    reward: mean reward of those samples without its gold part (PRE), None where it has no other
    part.
    """

    key: str
    id: str
    question: str
    outcome: str
    right: int
    samples: int
    nodes: int
    simulations: int
    tokens: int | None
    answer: str | None
    answer_right: bool | None
    share: float | None
    reward: float | None
    ended_by: str


@dataclass(slots=True)
class _Said:
    samples: int = 0
    visits: int = 0
    right: bool | None = None
    rewards: list[tuple[int, float]] = field(default_factory=list)

    @property
    def standing(self) -> tuple[int, bool, int]:
        return self.samples, bool(self.right), self.visits


def name_of(record: Facts) -> str:
    """The record's key, else its question's id."""
    return str(record.get("key") or problem_of(record)["id"])


def problem_of(record: Facts) -> dict[str, str]:
    """`id`, `question` and `source`, wherever the record has them; "" where it hasn't."""
    problem = record.get("problem") or {}
    return {
        "id": str(problem.get("id", "question")),
        "question": str(problem.get("question", record.get("question", ""))),
        "source": str(problem.get("source", "")),
    }


def choice_of(record: Facts) -> JsonObject:
    """`chosen`, `answer`, `why` and `response` as far as the record has them: the search's own, or
    what was served.
    """
    served = record.get("served") or {}
    names = {"chosen": "node", "answer": "answer", "why": "why", "response": "response"}
    choice = {name: record.get(name, served.get(as_served)) for name, as_served in names.items()}
    return {name: value for name, value in choice.items() if value is not None}


def token_pieces(
    record: Facts, decode: Callable[[Sequence[int]], str], known: dict[int, str]
) -> dict[str, str]:
    """The text of every token of the record, as `pieces` of a record; `known` is filled, for use
    with further records.
    """
    tree = record["tree"]
    columns = (
        tree["token_ids"],
        [rollout["token_ids"] for rollout in named_rollouts(tree)],
        [record.get("prompt_ids") or ()],
    )
    used = {token for column in columns for ids in column for token in ids}
    for token in used - known.keys():
        known[token] = token_text(decode, token)
    return {str(token): known[token] for token in sorted(used)}


def record_responses(tree: Facts) -> Iterator[tuple[str, JsonObject]]:
    """(text, grade) of every finished response: visited terminal nodes that no verifier rejected,
    then rollouts.
    """
    parent = tree["parent"]
    outcomes = tree.get("outcome") or [None] * len(parent)

    def down_to(node: int) -> str:
        parts = []
        while node >= 0:
            parts.append(tree["text"][node])
            node = parent[node]
        return "".join(reversed(parts))

    names = ("hre", "pre", "reward", "samples")

    def grade_row(row: Facts, visits: int, outcome: float | None) -> JsonObject:
        grade = {name: row[name] for name in names}
        # what it is known to be worth: its outcome where the user's own reward takes part
        return grade | {"visits": visits, "known": row["hre"] if outcome is None else outcome}

    for node, verdict in enumerate(tree["verdict"]):
        visits = tree["N"][node]
        if verdict is not None and verdict != REJECTED_VERDICT and visits > 0:
            row = {name: tree[name][node] for name in names}
            yield down_to(node), grade_row(row, visits, outcomes[node])
    for rollout in named_rollouts(tree):
        text = down_to(rollout["node"]) + rollout["text"]
        yield text, grade_row(rollout, rollout["count"], rollout.get("outcome"))


def named_rollouts(tree: Facts) -> list[JsonObject]:
    """The tree's rollouts by name."""
    return [dict(zip(ROLLOUT, row, strict=False)) for row in tree["rollouts"]]


def record_row(record: Facts) -> NodeRow:
    """The record's line in the list."""
    tree, problem = record["tree"], problem_of(record)
    right = samples = graded = 0
    answers: dict[str, _Said] = {}
    for text, grade in record_responses(tree):
        samples += grade["samples"]
        graded += grade["known"] is not None
        right += grade["samples"] if grade["known"] == 1.0 else 0
        stated = extract(text)
        if stated is not None:
            said = answers.setdefault(normalize(stated), _Said())
            said.samples += grade["samples"]
            said.visits += grade["visits"]
            said.right = said.right if grade["known"] is None else grade["known"] == 1.0
            reward = (
                grade["pre"]
                if grade["hre"] is not None or grade["pre"] is not None
                else grade["reward"]
            )
            if reward is not None:
                said.rewards.append((max(grade["samples"], 1), reward))
    answer = max(answers, key=lambda a: answers[a].standing, default=None)
    choice = choice_of(record)
    if not graded and "answer" in choice:
        # A graded tree's rewards know the gold answer, and so does what they chose.
        answer = normalize(str(choice["answer"]))
    said = answers.get(answer or "", _Said())
    weight = sum(count for count, _ in said.rewards)
    ended_by = str(record.get("ended_by", ""))
    return NodeRow(
        key=name_of(record),
        id=problem["id"],
        question=short_question(problem["question"]),
        outcome=describe_outcome(ended_by, right, samples, graded),
        right=right,
        samples=samples,
        nodes=len(tree["parent"]),
        simulations=len(tree["history"]["simulations"]),
        tokens=(record.get("cost") or {}).get("sampled_tokens"),
        answer=answer,
        answer_right=said.right,
        share=said.samples / samples if samples and answer is not None else None,
        reward=sum(count * reward for count, reward in said.rewards) / weight if weight else None,
        ended_by=ended_by,
    )


def short_question(question: str) -> str:
    """A question's beginning, in one line."""
    line = " ".join(question.split())
    return line if len(line) <= QUESTION_LETTERS else line[: QUESTION_LETTERS - 1].rstrip() + "…"


def describe_outcome(ended_by: str, right: int, samples: int, graded: int) -> str:
    """The outcome that `NodeRow` describes."""
    if ended_by.startswith("failed"):
        return "failed"
    if not samples:
        return "none"
    if not graded:
        return "ungraded"
    return "right" if right == samples else "mixed" if right else "wrong"


def page_payload(record: Facts) -> JsonObject:
    """What the page draws of one record: its columns with log-probabilities rounded, the choice,
    the cost.
    """
    tree = record["tree"]
    drawn: JsonObject = {name: tree[name] for name in DRAWN}
    drawn["logprobs"] = [_round_logprobs(values) for values in tree["logprobs"]]
    drawn["rollouts"] = [
        {**rollout, "logprobs": _round_logprobs(rollout["logprobs"])}
        for rollout in named_rollouts(tree)
    ]
    drawn["history"] = tree["history"]
    drawn |= {name: tree[name] for name in ("unread", "seen") if name in tree}
    more = ("ended_by", "cost", "search", "policy_version", "pieces", "prompt_ids")
    known = {name: record[name] for name in more if record.get(name) is not None}
    return {
        "key": name_of(record),
        **problem_of(record),
        **choice_of(record),
        **known,
        "tree": drawn,
    }


def _round_logprobs(logprobs: list[float]) -> list[float]:
    return [round(value, LOGPROB_DIGITS) for value in logprobs]
