"""What `serve` offers: a student, with what judges or guides its searches."""

from __future__ import annotations

import logging
from pathlib import Path

from ..answering.students import answering_student
from ..config.load import Config, check_read
from ..config.refusals import refuse_conflicts
from ..eval.named_verifiers import check_judged, load_verifier, named_verifier
from ..policy.folders import carried_value, with_chosen, with_discount
from ..problems.load import opening, with_context
from .answerer import Answerer
from .requests import MCTS, SAMPLE, Models

log = logging.getLogger(__name__)


def load_models(
    config: Config,
    search: str | None,
    path: Path | None,
    verifier: str | None,
    prm: Path | None,
    value: Path | None,
) -> tuple[Models, Answerer]:
    """The models that are offered, and who answers: the student with its verifier or its value.

    Args:
        search: what the model `student` does (None: a plain sample, and over another server mcts).
        path: a folder with the student's weights, or None.
        verifier: who judges (None: as the networks say); with "none" a value guides the searches.
        prm, value: folders of networks, or None.
    """
    check_read(config, command="serve", searches="yes")
    remote = config.engine.backend == "openai"
    refuse_conflicts(config, "serving", network=prm or value)
    if not (remote or verifier or prm or value or config.search.value):
        config, value = carried_value(config, path)
        if value is not None:
            config, value, said = with_chosen(config, value)
            log.warning(said)
    named = named_verifier(verifier, prm, None if verifier == "none" else value, "calculator+")
    judged = named != "none"
    config.refuse({"search.budget_tokens": "which serve.budget_tokens is here: set that"})
    if judged:
        check_judged(named, config)
    models = Models("student", search or (MCTS if remote else SAMPLE), judged)
    guide = value or config.search.value
    valued = value is not None or (guide is not None and not judged)
    refuse_conflicts(config, "search", valued=valued, verified=False)
    if guide is not None:
        config = with_discount(config, Path(guide))
    config = with_context(config)
    student = answering_student(config, path, opening(config), (prm or guide) is None)
    if judged:
        return models, Answerer(student, config, load_verifier(named, student, config, prm, value))
    if guide is None:
        return models, Answerer(student, config)
    from ..policy.critic import load_value  # with PyTorch

    network = load_value(Path(guide), student, config)
    return models, Answerer(student, config, value=network)
