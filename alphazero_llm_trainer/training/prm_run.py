"""From steps to a PRM folder: train the kinds that are asked for, keep the best by validation, calibrate, judge, seal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config.load import Config
from ..errors import ConfigError, DataError
from ..eval.metrics import Interval
from ..eval.step_figures import JudgedSteps, best_total, follows_plan, measure
from ..live import Progress
from ..policy.logistic import fit_logistic
from ..policy.prm_verifier import FLOOR, FOLDER, squash
from ..policy.student import Student, load_student
from ..problems.source import open_source
from .judge import longest, platt, questions_at_once
from .models import Economy, checkpoint_layers, make_trainable
from .prm import FittedPrm, StepRow, StepScorer, adapter_scorer, balanced, new_scorer, step_scores, train_scorer
from .prm_data import StepSet
from .progress import StepProgress
from .value_run import data_hash, layers_on_top, save_judge

KINDS = ("implicit", "classifier", "bradley-terry")
WHOLE_TREES = 8  # questions a forward where all their steps are scored, at most
POLICY = "policy log-probability"
COMBINED = "kept + policy log-probability"

Figures = dict[str, dict[str, Interval]]  # figure -> scorer -> value


@dataclass(slots=True)
class TrainedPrm:
    """The kept scorer, its calibration, the rule for totals and all kinds' figures on the test questions.

    p = sigmoid(scale * score + policy * (the policy's log-probability of the step) + shift).
    `seconds` has each kind's training, `validation` its best held-out pair accuracy, `totals` each rule's AUC over
    validation responses. `labels` says where the reported steps' labels come from.
    """

    fitted: FittedPrm
    scale: float
    policy: float
    shift: float
    total: str
    totals: dict[str, float]
    figures: Figures
    seconds: dict[str, float]
    validation: dict[str, float]
    labels: str
    questions: dict[str, int]
    pairs: dict[str, int]
    data: str


def train_prm(
    student: Student,
    config: Config,
    parts: tuple[Sequence[StepSet], Sequence[StepSet], Sequence[StepSet]],
    out: Path,
    watch: Callable[[str, dict[str, float]], None] = lambda kind, line: None,
    progress: Progress | None = None,
) -> TrainedPrm:
    """Train on the first part, choose, stop and calibrate on the second, report on the third."""
    progress = progress if progress is not None else Progress(quiet=True)
    settings = config.train.prm
    student.engine.rest()  # nothing is searched from here on
    economy = Economy.of(config, student.spec, student.model)
    if settings.trainer == "trl" and (settings.kind != "bradley-terry" or settings.logprob):
        raise ConfigError(
            f"train.prm.trainer is trl and train.prm.kind {settings.kind}: TRL's reward trainer is for bradley-terry with"
            " train.prm.logprob=false"
        )
    training, validation, test = parts
    rows = [one.lean_row(settings.pairs_per_question) for one in training]
    rows = [row for row in rows if row.pairs or any(row.label_weights)]
    held_out = [one.lean_row(settings.pairs_per_question) for one in validation]
    reported = [one.row() for one in test]
    extra = layers_on_top(student, config, settings)
    scores: dict[str, list[torch.Tensor]] = {}
    policy = StepScorer(student.model, head=False, logprob=True)
    whole = [one.row() for one in validation]
    size = min(WHOLE_TREES, questions_at_once(settings, student.model, longest(reported, whole), logits=True))
    scores[POLICY] = logprobs_of(policy, reported, size, economy.autocast)
    own = logprobs_of(policy, whole, size, economy.autocast)
    base = student.model if settings.base is None else other_model(student, config, Path(settings.base))
    fits: dict[str, FittedPrm] = {}
    for kind in KINDS if settings.kind == "all" else (settings.kind,):
        scorer = begun(student, config, base, kind, extra)
        if economy.checkpointing:
            checkpoint_layers(scorer.bare)
        common: dict[str, Any] = {
            "out_dir": out,
            "seed": config.library_seed,
            "watch": partial(watch, kind),
            "callbacks": [StepProgress(progress, kind)],
        }
        if settings.trainer == "trl":
            from .prm_trl import pair_rows, train_reward

            pairs = [
                row for one in training
                for row in pair_rows(one.prompt_ids, balanced(one.pairs, settings.pairs_per_question))
            ]  # fmt: skip
            fits[kind] = train_reward(scorer, pairs, rows, held_out, student.tokenizer, settings, **common)
        else:
            fits[kind] = train_scorer(scorer, kind, rows, held_out, settings, bfloat16=economy.autocast, **common)
        if scorer.adapter is not None:
            scorer.lm.requires_grad_(False)  # the next kind's adapter is trained alone
        scores[kind] = scores_of(scorer, reported, size, economy.autocast)
    kept = max(fits, key=lambda kind: fits[kind].best["held_out_pairs"])
    fitted = fits[kept]
    judged = scores_of(fitted.scorer, whole, size, economy.autocast)
    scale, weight, shift = calibration(judged, own if settings.policy else None, validation)
    sure = [scale * one + weight * logprob + shift for one, logprob in zip(judged, own, strict=True)]
    total, totals = best_total(responses_of(sure, validation))
    if settings.policy:
        both = zip(scores[kept], scores[POLICY], strict=True)
        scores[COMBINED] = [scale * one + weight * logprob for one, logprob in both]
    plans = [open_source(config).only_steps(one.id) for one in test]
    exact = [plan for plan in plans if plan is not None] if None not in plans else None
    return TrainedPrm(
        fitted,
        scale,
        weight,
        shift,
        total,
        totals,
        judge(scores, test, reported, student, exact, config.seed),
        {kind: fit.seconds for kind, fit in fits.items()},
        {kind: fit.best["held_out_pairs"] for kind, fit in fits.items()},
        "the worked solution" if exact else "sampled outcomes or the file's labels",
        dict(zip(("training", "validation", "test"), map(len, parts), strict=True)),
        dict(zip(("training", "validation", "test"), (sum(len(r.pairs) for r in p) for p in (rows, held_out, reported)),
                 strict=True)),
        data_hash(rows),
    )  # fmt: skip


def begun(student: Student, config: Config, base: Any, kind: str, extra: int) -> StepScorer:
    """A scorer of `kind` to be trained. Raises ConfigError for a quantised student with another model to start from."""
    settings = config.train.prm
    if student.spec.quantization == "none":
        scorer = new_scorer(base, kind, settings, extra)
        scorer.lm = make_trainable(scorer.lm, student.spec, config.train.adapter or student.spec.adapter)
        return scorer
    if settings.base is not None:
        raise ConfigError(
            f"student {student.name} is quantised: its PRM is an adapter over its own base; leave train.prm.base=null"
        )
    return adapter_scorer(base, kind, settings, student.spec.lora)


def scores_of(scorer: StepScorer, rows: Sequence[StepRow], size: int, bfloat16: bool) -> list[torch.Tensor]:
    """Scores of each row's steps `[S]`."""
    return [both[:, 0] for both in step_scores(scorer, rows, size, bfloat16)]


def logprobs_of(policy: StepScorer, rows: Sequence[StepRow], size: int, bfloat16: bool) -> list[torch.Tensor]:
    """The policy's log-probabilities of each row's steps `[S]`, not below the floor."""
    return [both[:, 1].clamp(min=FLOOR) for both in step_scores(policy, rows, size, bfloat16)]


def other_model(student: Student, config: Config, folder: Path) -> Any:
    """The model of another student's folder. Raises ConfigError where its tokens are others."""
    engine = config.engine.model_copy(update={"backend": "inprocess"})  # a server has the student's weights, not these
    loaded = load_student(config.model_copy(update={"engine": engine}), student.name, folder)
    loaded.engine.close()
    other = loaded.model
    if other.config.vocab_size != student.model.config.vocab_size:
        raise ConfigError(
            f"train.prm.base {folder} is for {other.config.vocab_size} tokens, student {student.name} has"
            f" {student.model.config.vocab_size}: name a folder of the same tokenizer"
        )
    return other


def calibration(
    scores: Sequence[torch.Tensor], logprobs: Sequence[torch.Tensor] | None, sets: Sequence[StepSet]
) -> tuple[float, float, float]:
    """Weights of the score and of the policy's log-probability, and a shift, for which sigmoid is the probability that
    a step can still come out right (Platt 1999). A log-probability that would count against a step gets no weight.
    """
    label, weight = [], []
    for one in sets:
        total = sum(step.weight for step in one.steps) or 1.0
        sampled = one.responses and not one.graded  # a label there is the share of right responses
        label += [float(step.target > 0.0) if sampled else step.target for step in one.steps]
        weight += [step.weight / total for step in one.steps]
    if not 0 < sum(w * y for w, y in zip(weight, label, strict=True)) < sum(weight):
        raise DataError("the validation questions' steps are all right or all wrong: give more questions")
    score, y, w = torch.cat(list(scores)), torch.tensor(label), torch.tensor(weight)
    if logprobs is not None:
        columns = torch.stack([score, torch.cat(list(logprobs))], 1).double().numpy()
        scale, policy, shift = fit_logistic(columns, y.double().numpy(), w.double().numpy()).plain
        if min(scale, policy) > 0:
            return scale, policy, shift
    scale, shift = platt(score, y, w)
    return scale, 0.0, shift


def responses_of(logits: Sequence[torch.Tensor], sets: Sequence[StepSet]) -> list[tuple[list[float], float, int]]:
    """(step probabilities, outcome, count) of every distinct response."""
    found = []
    for logit, one in zip(logits, sets, strict=True):
        known = {
            (step.prefix_ids, step.step_ids): squash(float(each)) for step, each in zip(one.steps, logit, strict=True)
        }
        for chain, outcome, count in one.responses:
            if all(key in known for key in chain):
                found.append(([known[key] for key in chain], outcome, count))
    return found


def judge(
    scores: Mapping[str, list[torch.Tensor]],
    sets: Sequence[StepSet],
    rows: Sequence[StepRow],
    student: Student,
    plans: Sequence[list[str]] | None,
    seed: int,
) -> Figures:
    """The figures of `eval.step_figures.measure` on held-out questions; gold is used here, to report, and nowhere else.

    `plans` are the only right steps of each question, where its source knows them.
    """
    entries, chosen = [], []
    at = 0
    for number, one in enumerate(sets):
        for i, step in enumerate(one.steps):
            prefix = student.decode(step.prefix_ids).splitlines()
            text = student.decode(step.step_ids)
            if plans is not None:
                right: bool | None = follows_plan(plans[number], prefix, text)
            else:
                right = step.target >= 0.5 if step.weight > 0 else None
            if right is not None:
                entries.append((number, len(prefix), float(right), one.draws[i], text))
                chosen.append(at + i)
        at += len(one.steps)
    index = np.array(chosen, dtype=int)
    flat = {name: torch.cat(found).double().numpy() for name, found in scores.items()}
    questions = np.array([number for number, row in enumerate(rows) for _ in row.pairs], dtype=int)
    offsets = np.cumsum([0] + [len(row.states) for row in rows])
    pairs = np.array(
        [(offsets[n] + better, offsets[n] + worse) for n, row in enumerate(rows) for better, worse, _ in row.pairs],
        dtype=int,
    ).reshape(-1, 2)
    return measure(
        {name: score[index] for name, score in flat.items()},
        JudgedSteps.of(entries),
        {name: score[pairs] for name, score in flat.items()},
        questions,
        seed,
    )


def save_prm(folder: Path, trained: TrainedPrm, student: Student, config: Config, facts: Mapping[str, Any]) -> None:
    """Write the PRM's folder: see `policy.prm_verifier`."""
    scorer, scale = trained.fitted.scorer, trained.scale
    numbers = {
        "mix": (scorer.mix.detach() * scale).reshape(1).float().cpu(),
        "policy": torch.tensor([trained.policy]),
        "bias": (scorer.bias.detach() * scale + trained.shift).reshape(1).float().cpu(),
    }
    if scorer.head is not None:
        numbers["weight"] = (scorer.head.weight.detach()[0].float() * scale).contiguous().cpu()
    card = {
        "kind": trained.fitted.kind,
        "total": trained.total,
        "totals_auc": trained.totals,
        "test": {
            figure: {name: list(astuple(interval)) for name, interval in found.items()}
            for figure, found in trained.figures.items()
        },
        "labels": trained.labels,
        "validation_pairs": trained.validation,
        "seconds_by_kind": trained.seconds,
        "best": trained.fitted.best,
        "calibration": {"scale": scale, "policy": trained.policy, "shift": trained.shift},
        "questions": trained.questions,
        "pairs": trained.pairs,
        "data_sha256": trained.data,
        "settings": config.train.prm.model_dump(mode="json"),
        **facts,
    }
    save_judge(folder, FOLDER, numbers, scorer.lm, scorer.adapter, student, config, card)
