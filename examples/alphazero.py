"""AlphaZero for language models, the whole loop in one file: `uv run python examples/alphazero.py`,
about two minutes.

    search  trees of reasoning steps under policy and value: PUCT, one step a simulation
    rows    what the right answer's steps were, and which states they led from
    losses  the policy's likelihood of those steps, the value's cross-entropy of how states end
    step    both in one backward pass; the better network searches the next questions

One network has two heads, as in Silver et al. 2017: the language model's own, and a linear one that
says how likely a state (the steps so far) is to end right. The search asks the second one where to
go on, and no token is spent on that. Steps that the source's rule refutes are drawn again.

It prints the questions solved in each round, how well the value told states of that round's new
trees apart (AUC: .5 is chance), and the share of held-out problems that greedy answers get right
before and after, with the paired difference and its 95% interval. `train --config alphazero` is the
same loop with checkpoints, resume, validation and a report.
"""

import math
import random
from typing import NamedTuple

import torch
from torch.nn import functional as F

import alphazero_llm_trainer as az

PROBLEMS = "embedded"  # an address of `--source`: numbers, pancake, your own file.py:NAME, ...
# AlphaZero's own rule; 200 tokens of a question
SEARCH = {"train.method": "alphazero", "search.select": "puct", "search.budget_tokens": 200}
ROUNDS, QUESTIONS = 6, 192  # questions of a round
UPDATES, BATCH = 40, 16  # updates of a round; an update has as many ways as states off them
RATE, WEIGHT_DECAY, MAX_NORM = 5e-4, 0.3, 1.0
COEFFICIENT = 0.1  # of the value's loss
DISCOUNT = 0.95  # of a step: what ends right sooner is worth more
OFF_WAY = 4  # states off the way that a tree gives
HELD_OUT = 300  # test problems, answered greedily before and after
SEED = 7


class Row(NamedTuple):
    """A prompt and a beginning of a response, as tokens."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    chosen: bool  # whether the policy learns its steps
    values: dict[int, float]  # tokens of the response before a state -> z, how the state ended


def search(student, value: torch.nn.Linear, number: int) -> list:
    """The trees of a round's questions, which nobody has asked before; each ends at its first right
    answer. In the first round the value knows nothing, and the trees are chains.
    """
    start = 500 + number * QUESTIONS  # the embedded student has seen the solutions of the first 500
    guide = value if number else None
    sizes = {"num": QUESTIONS, "start": start, "seed": SEED + number}
    return az.collect(PROBLEMS, student, value=guide, config=SEARCH, **sizes)


def way_of(graded) -> list[int]:
    """The nodes of a tree's right response, [] where nothing was right."""
    return next((list(response.nodes) for response in graded.responses if response.right), [])


def rows_of(graded, draw: random.Random) -> list[Row]:
    """The way to a tree's right answer, and states off it, which ended nowhere."""
    tree, way, rows = graded.tree, way_of(graded), []
    states = [node for node in range(len(tree)) if tree.verdict[node] is None]  # 0 is the root
    if way:
        values, length = {}, 0
        for left, node in zip(range(len(way), 0, -1), way, strict=True):
            values[length] = DISCOUNT**left  # the state before this step
            length += len(tree.token_ids[node])
        rows.append(Row(graded.prompt_ids, tree.sequence(way[-1])[0], True, values))
        states = [node for node in states if node not in {0, *way}]
    for node in draw.sample(states, min(OFF_WAY, len(states))):
        tokens = tree.sequence(node)[0]
        rows.append(Row(graded.prompt_ids, tokens, False, {len(tokens): 0.0}))
    return rows


def score(model, value: torch.nn.Linear, rows: list[Row]) -> tuple[torch.Tensor, ...]:
    """By row and token: log p of the next token, whether it is to be learnt; the value's logit of
    the state so far, its z, and whether it has one. All `[B, N - 1]`.
    """
    longest = max(len(row.prompt) + len(row.response) for row in rows) + 1
    ids = torch.zeros(len(rows), longest, dtype=torch.long)  # [B, N]
    there, pi, z, known = (torch.zeros(len(rows), longest) for _ in range(4))
    for at, row in enumerate(rows):
        start, end = len(row.prompt), len(row.prompt) + len(row.response)
        ids[at, :end] = torch.tensor(row.prompt + row.response)
        there[at, :end] = 1
        pi[at, start:end] = row.chosen
        for length, target in row.values.items():
            z[at, start + length] = target  # a state is read at the token before this one
            known[at, start + length] = 1
    out = model(input_ids=ids, attention_mask=there.long(), output_hidden_states=True)
    logprobs = out.logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    logits = value(out.hidden_states[-1][:, :-1]).squeeze(-1)  # position t is before token t + 1
    return logprobs, pi[:, 1:], logits, z[:, 1:], known[:, 1:]


def policy_loss(logprobs: torch.Tensor, pi: torch.Tensor) -> torch.Tensor:
    """`-sum(pi * log p) / sum(pi)`: what the search chose becomes likelier."""
    return -(pi * logprobs).sum() / pi.sum()


def value_loss(logits: torch.Tensor, z: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """`-(z log V + (1 - z) log(1 - V))`, the mean over states: V becomes how states ended."""
    entropy = F.binary_cross_entropy_with_logits(logits, z, reduction="none")
    return (known * entropy).sum() / known.sum()


def auc(trees: list) -> float:
    """How often V was higher of a state on the way to a right answer than of another one."""
    right, other = [], []
    for graded in trees:
        way, tree = {0, *way_of(graded)} if way_of(graded) else set(), graded.tree
        for node, value in enumerate(tree.V):
            if value is not None and tree.verdict[node] is None:
                (right if node in way else other).append(value)
    pairs = [(a > b) + 0.5 * (a == b) for a in right for b in other]
    return sum(pairs) / len(pairs) if pairs else math.nan


def evaluate(student) -> list[int]:
    """Which of the held-out problems the student's greedy answers get right."""
    table = az.evaluate(PROBLEMS, student, methods="greedy", num=HELD_OUT, progress=False)
    return [int(outcome) for outcome in table.rows[0]["outcomes"]]


def main() -> None:
    torch.manual_seed(SEED)  # of the value's layer
    student, draw = az.load(), random.Random(SEED)
    model, value = student.model, torch.nn.Linear(student.model.config.hidden_size, 1)
    trained = [*model.parameters(), *value.parameters()]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ROUNDS * UPDATES)
    before, ways, states = evaluate(student), [], []  # rows of this round and of all before

    for number in range(ROUNDS):
        trees = search(student, value, number)
        for row in [row for tree in trees for row in rows_of(tree, draw)]:
            (ways if row.chosen else states).append(row)
        for _ in range(UPDATES):
            rows = draw.choices(ways, k=BATCH) + draw.sample(states, min(BATCH, len(states)))
            logprobs, pi, logits, z, known = score(model, value, rows)
            loss = policy_loss(logprobs, pi) + COEFFICIENT * value_loss(logits, z, known)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, MAX_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        student.engine.set_policy(None, number + 1)  # the next trees are the better student's
        solved, told = sum(bool(way_of(tree)) for tree in trees), auc(trees)
        known = "" if math.isnan(told) else f", AUC of the value {told:.2f}"
        print(f"round {number + 1}: {solved} of {QUESTIONS} questions solved{known}", flush=True)

    after = evaluate(student)
    gains = [new - old for old, new in zip(before, after, strict=True)]  # paired: the same problems
    gain = sum(gains) / HELD_OUT
    error = 1.96 * math.sqrt(sum((change - gain) ** 2 for change in gains)) / HELD_OUT
    print(f"before {sum(before) / HELD_OUT:.3f}, after {sum(after) / HELD_OUT:.3f}, held out")
    print(f"gain {gain:+.3f} [{gain - error:+.3f}, {gain + error:+.3f}]")


if __name__ == "__main__":
    main()
