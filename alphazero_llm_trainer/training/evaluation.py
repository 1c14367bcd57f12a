"""The student measured: before, at checkpoints and after; the best weights, and everything that is written at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ..config.load import Config
from ..eval.greedy import Answers, answer
from ..eval.metrics import mean_interval, paired_bootstrap, repeats, wilson
from ..live import Progress
from ..policy.student import Student
from ..policy.weights import load_tensors, save_tensors
from ..problems.source import open_source, source_of
from ..rewards.combined import outcome
from ..rollouts import Collector
from ..types import Cost, Task
from .hub import upload, write_model_card
from .models import load_trained_state, save_student, trained_state
from .ranks import Ranks
from .run import RunFolder
from .size import RunSize
from .tracking import Tracking

VALIDATION = "validation"


class Measured:
    """A run's student and its held-out problems."""

    config: Config
    size: RunSize
    student: Student
    adapter: str
    collector: Collector
    test: Sequence[Task]
    validation: Sequence[Task]
    folder: RunFolder
    tracking: Tracking
    progress: Progress
    best: tuple[float, int] | None  # the best validation score, and after how many rounds
    ends: Counter[str]
    stop: Callable[[], bool]
    ranks: Ranks

    def evaluate(self, tasks: Sequence[Task], doing: str = VALIDATION) -> Answers:
        """Greedy answers of the student as it is now; the problems are counted on `progress` as what it is `doing`.

        Raises StoppedError where the user ends that. A checkpoint's validation is not ended: the updates before it would be
        made again.
        """
        return answer(
            self.student,
            tasks,
            max_tokens=self.config.search.max_tokens,
            custom=self.collector.custom,
            progress=self.progress,
            doing=doing,
            stop=None if doing == VALIDATION or self.ranks.size > 1 else self.stop,
        )

    def measure_test(self, when: str) -> dict[str, Any]:
        """The test problems' results, "before" or "after" training; what was answered is kept, for those that flipped."""
        answers = self.evaluate(self.test, f"held-out problems {when} training")
        if self.test:
            responses = [samples[0] if samples else "" for samples in answers.responses]  # "": its prompt was too long
            self.folder.write_answers(when, self.test, responses, answers.first)
        return summary(answers, self.test)

    def keep_best(self, rounds_done: int) -> None:
        """Write the weights of now where those after so many rounds are the best so far.

        It comes after the checkpoint of that round is sealed: the weights of one that a kill cut off are nobody's best.
        """
        if self.best is not None and self.best[1] == rounds_done:
            save_tensors(trained_state(self.student.model), self.folder.best)

    def before(self, card: dict[str, Any]) -> None:
        """The untrained student's results on the test problems; a resumed run has them in its card."""
        if "before" not in card:
            card["before"] = self.measure_test("before")
            if self.validation:
                answers = self.evaluate(self.validation, "validation before training")
                card["validation_before"] = self.score(answers)
            self.folder.write_card(card)
        self.validation_before = card.get("validation_before")

    def validate(self, rounds_done: int) -> float | None:
        """The score on validation problems after `rounds_done` rounds; the best score so far is kept."""
        if not self.validation:
            return None
        accuracy = self.score(self.evaluate(self.validation))
        if self.config.train.keep_best and (self.best is None or accuracy > self.best[0]):
            self.best = (accuracy, rounds_done)
        return accuracy

    def score(self, answers: Answers) -> float:
        """What the best weights are chosen by: accuracy, or with a reward of the user's own the mean outcome."""
        weights = self.config.rewards
        if not weights.own:
            return sum(answers.first) / len(answers.first)
        pairs = zip(answers.grades, answers.rewards, strict=True)
        outcomes = [outcome(grade, reward, weights) for grade, reward in pairs if reward is not None]
        return sum(value or 0.0 for value in outcomes) / len(outcomes)

    def restore_best(self, facts: dict[str, Any]) -> None:
        """Go on from a checkpoint's best; at the start the untrained student is the one to beat."""
        if facts.get("best") is not None:
            self.best = (facts["best"][0], facts["best"][1])
        elif self.config.train.keep_best and self.validation_before is not None:
            self.best = (self.validation_before, 0)
            self.keep_best(0)

    def conclude(self, card: dict[str, Any]) -> dict[str, Any]:
        """Take the best weights, evaluate them on the test problems once, write everything."""
        card["kept"] = "last"
        if self.best is not None:
            load_trained_state(self.student.model, load_tensors(self.folder.best))
            score, number = self.best
            card["kept"] = (
                f"best checkpoint: {f'round {number}' if number else 'the untrained student'} (validation {score:.3f})"
            )
        before, after = card["before"], self.measure_test("after")
        rounds = [line for line in self.folder.read_metrics() if "cost" in line]
        total = Cost()
        for line in rounds:
            total.add(Cost(**line["cost"]))
        accurate = after["accuracy"] is not None
        card |= {
            "after": after,
            "gain": gain(before["correct"], after["correct"], self.test) if accurate else None,
            "reward_gain": gain(before.get("rewards", ()), after.get("rewards", ()), self.test),
            "failed_rewards": sum(line.get("failed_rewards", 0) for line in rounds),
            "rounds": len(rounds),
            "search_cost": total.as_dict(),
            "ends": dict(self.ends),
        }
        # The card that says "finished" is written after it.
        source = open_source(self.config).name
        save_student(self.student, self.adapter, source, self.folder.student, self.folder.adapter)
        base = self.config.train.student or self.student.spec.path
        for place in (self.folder.student, self.folder.adapter):
            if place.is_dir():
                write_model_card(place, card, base, adapter=place == self.folder.adapter)
        self.folder.write_card(card)
        test = {name: card[name]["accuracy"]["value"] for name in ("before", "after") if card[name]["accuracy"]}
        self.tracking.log({"test": test, "total": card["search_cost"]}, self.size.questions)
        if self.config.train.push_to_hub is not None:
            parts = {".": self.folder.student} | ({"adapter": self.folder.adapter} if self.adapter == "lora" else {})
            card["uploaded"] = upload(self.config.train.push_to_hub, parts)
            self.folder.write_card(card)
        return card


def summary(answers: Answers, tasks: Sequence[Task]) -> dict[str, Any]:
    """Accuracy with its interval (over `distinct` problems; None without gold), cost, and each problem's result for paired
    comparisons. With a reward of the user's own its mean, too, each problem's, and how many failed; without one the same of
    the grades, where the source gives partial credit."""
    total, distinct = len(answers.first), len(set(repeats(tasks)))
    gold = any(task.gold or source_of(task.problem).gold_free for task in tasks)
    figures: dict[str, Any] = {
        "accuracy": asdict(wilson(sum(answers.first), total, distinct)) if gold else None,
        "problems": total,
        "distinct": distinct,
        "tokens": answers.tokens,
        "seconds": round(answers.seconds, 2),
        "too_long": answers.skipped,
        "correct": answers.first,
    }
    rewards = answers.rewards or ([*answers.grades] if answers.partial else [])
    known = [reward for reward in rewards if reward is not None]
    if known:
        figures |= {
            "reward": asdict(mean_interval(known)),
            "rewards": rewards,
            "failed_rewards": total - len(known),
        }
    return figures


def gain(before: Sequence[float | None], after: Sequence[float | None], tasks: Sequence[Task]) -> dict[str, Any] | None:
    """The paired gain with its interval, over the problems that have a number both times; None where none has."""
    both = [pair for pair in zip(before, after, repeats(tasks), strict=False) if None not in pair]
    if not both:
        return None
    earlier, later, groups = zip(*both, strict=True)
    return asdict(paired_bootstrap(later, earlier, groups=groups))
