"""A run's pre-flight: a few of its questions are answered before it begins, which shows where it
would learn nothing.

What is sampled is thrown away: the run's random streams, trees, journal and weights are those
without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..config.load import Config
from ..errors import TrainingError
from ..eval.greedy import answer_tasks
from ..live import Progress, StopAsked
from ..policy.student import Student
from ..problems.registry import is_gradable, source_of
from ..problems.step_checks import check_states
from ..types import Task

PREFLIGHT_SAMPLES = 4  # responses to a question


def affordable_questions(config: Config) -> int:
    """How many questions' samples are no more than a quarter of the responses that the run samples,
    those of its held-out problems too.
    """
    train = config.train
    searched = train.num_examples * PREFLIGHT_SAMPLES
    if train.tokens is not None:
        searched = min(searched, train.tokens // config.search.max_tokens)
    responses = searched + 2 * train.eval_size + train.validation_size
    return min(train.preflight, responses // (4 * PREFLIGHT_SAMPLES))


def run_preflight(
    student: Student,
    config: Config,
    tasks: Sequence[Task],
    progress: Progress,
    stop: StopAsked,
) -> str:
    """Sample `PREFLIGHT_SAMPLES` responses to each task as training does, and grade them by gold
    alone. Returns a line of figures, and of what the run's sampling would take at that speed.

    Raises ConfigError where the source's `state` gives two states of them one name.
    """
    answers = answer_tasks(
        student,
        tasks,
        max_tokens=config.search.max_tokens,
        settings=config.search,
        n=PREFLIGHT_SAMPLES,
        temperature=config.search.temperature,
        seed=config.seed,
        progress=progress,
        doing="pre-flight",
        stop=stop,
    )
    responses = [
        (task, text) for task, texts in zip(tasks, answers.responses, strict=True) for text in texts
    ]
    for task, texts in zip(tasks, answers.responses, strict=True):
        check_states(task.problem, texts)
    unstated = sum(source_of(task.problem).final_answer(text) is None for task, text in responses)
    known = any(map(is_gradable, tasks))
    right = sum(map(sum, answers.correct)) if known else None
    check_learnable(config, len(responses), right, unstated, answers.tokens)
    speed, train = answers.tokens / answers.seconds, config.train
    each = answers.tokens / len(responses)
    planned, tokens = f"a response to each of {train.num_examples:,} questions", train.tokens
    if tokens is None:
        tokens = round(each * train.num_examples)
    else:
        planned = "the run's"
    return (
        f"pre-flight, {len(responses)} responses: "
        f"{'' if right is None else f'{right} right, '}{unstated} without an answer,"
        f" {each:,.0f} tokens each, {speed:,.0f} tokens a second; {planned}: {tokens:,} tokens, "
        f"{max(1, round(tokens / speed / 60)):,} min"
    )


def check_learnable(
    config: Config, responses: int, right: int | None, unstated: int, tokens: int
) -> None:
    """Raise TrainingError where a run would learn nothing: no prompt fits, or nothing is right, and
    nothing states an answer or all is cut.

    `right` is None where nothing knows what is. A reward of the user's own may find more than that:
    such a run goes on.
    """
    if not responses:
        raise TrainingError(
            "pre-flight: no prompt fits into engine.max_context, "
            f"which is {config.engine.context}: raise it"
        )
    if right is None or right or config.rewards.own:
        return
    if tokens == responses * config.search.max_tokens:
        why = f"all were cut at search.max_tokens, which is {config.search.max_tokens}: raise it"
    elif unstated == responses:
        why = (
            "none states an answer: say how to with problems.system_prompt, show worked solutions "
            "with problems.shots, or warm the student up with `sft`"
        )
    else:
        return
    raise TrainingError(
        f"pre-flight: of {responses} responses none is right and {why}; "
        "or go on all the same with train.preflight=0"
    )
