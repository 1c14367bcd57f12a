"""AlphaZero for language models, the whole idea in one file: `uv run python examples/alphazero.py`,
about a minute.

    search     trees of reasoning steps, grown by the student; steps that a calculator refutes are
    drawn again grade      a response is right where its final answer is the gold one learn      the
    likelihood of right responses, of this round's trees and of all rounds before repeat     the
    better student searches again

It prints how many held-out problems greedy answers get right before and after, and the paired
difference with its 95% interval.

It is expert iteration (Anthony et al. 2017), as `train` does it by default, without folders,
resume, demonstrations and a second process. Change `rows_of` and `loss_of` for another method:
GRPO's and PPO's formulas are in `alphazero_llm_trainer/training/losses.py`.
"""

import math
import random

import torch

import alphazero_llm_trainer as az

PROBLEMS = "embedded"  # an address of `--source`: gsm8k, math, a file of rows, hub:OWNER/NAME, ...
ROUNDS, QUESTIONS = 8, 192  # questions of a round
UPDATES, BATCH = 40, 16  # updates of a round, rows of an update
RATE, MAX_NORM = 5e-4, 1.0
HELD_OUT = 300  # test problems, answered greedily before and after
SEED = 7

Row = tuple[tuple[int, ...], tuple[int, ...]]  # a prompt and a response, as tokens


def search(student, number: int) -> list:
    """The trees of a round's questions, which nobody has asked before."""
    start = 500 + number * QUESTIONS  # the embedded student has seen the solutions of the first 500
    return az.collect(PROBLEMS, student, num=QUESTIONS, start=start, seed=SEED + number)


def rows_of(trees: list) -> list[Row]:
    """The different right responses of each tree, token for token as they were sampled."""
    return [
        (tree.prompt_ids, response.token_ids)
        for tree in trees
        for response in tree.responses
        if response.right
    ]


def score(model, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities `[B, T]` of the rows' tokens, each under those before it, and which of them
    are the response's.
    """
    longest = max(len(prompt) + len(response) for prompt, response in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)  # [B, T]
    there, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (prompt, response) in enumerate(rows):
        ids[row, : len(prompt) + len(response)] = torch.tensor(prompt + response)
        there[row, : len(prompt) + len(response)] = 1
        mask[row, len(prompt) : len(prompt) + len(response)] = 1
    logits = model(input_ids=ids, attention_mask=there).logits[
        :, :-1
    ]  # [B, T - 1, V]: position t predicts token t + 1
    logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)  # [B, T - 1]
    return logprobs, mask[:, 1:]


def loss_of(logprobs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`-mean log p` over the tokens of right responses: supervised learning from what search has
    found.
    """
    return -(logprobs * mask).sum() / mask.sum()


def evaluate(student) -> list[int]:
    """Which of the held-out problems the student's greedy answers get right."""
    table = az.evaluate(PROBLEMS, student, methods="greedy", num=HELD_OUT, progress=False)
    return [int(outcome) for outcome in table.rows[0]["outcomes"]]


def main() -> None:
    student = az.load()
    model, draw = student.model, random.Random(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, ROUNDS * UPDATES)
    before, replay = evaluate(student), []

    for number in range(ROUNDS):
        trees = search(student, number)  # search -> graded trees
        replay += rows_of(trees)  # trees -> rows
        for _ in range(UPDATES):
            logprobs, mask = score(model, draw.choices(replay, k=BATCH))
            loss = loss_of(logprobs, mask)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        student.engine.set_policy(None, number + 1)  # the next trees are the better student's
        solved = sum(any(response.right for response in tree.responses) for tree in trees)
        print(
            f"round {number + 1}: {solved} of {QUESTIONS} questions solved, loss {loss.item():.3f}",
            flush=True,
        )

    after = evaluate(student)
    gains = [new - old for old, new in zip(before, after, strict=True)]  # paired: the same problems
    gain = sum(gains) / HELD_OUT
    error = 1.96 * math.sqrt(sum((difference - gain) ** 2 for difference in gains)) / HELD_OUT
    print(
        f"before {sum(before) / HELD_OUT:.3f}, after {sum(after) / HELD_OUT:.3f} of {HELD_OUT} "
        "held-out problems"
    )
    print(f"gain {gain:+.3f} [{gain - error:+.3f}, {gain + error:+.3f}]")


if __name__ == "__main__":
    main()
