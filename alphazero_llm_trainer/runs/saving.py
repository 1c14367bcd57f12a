"""A trained student as a folder that transformers loads."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from ..files import sync_all
from ..learning.models import save_adapter
from ..policy.folders import trained_with, write_facts
from ..policy.student import Student
from ..policy.weights import complete_sampling
from .merging import bare_model, merge_adapter


def save_student(
    student: Student,
    adapter: str,
    source: str,
    folder: Path,
    adapter_folder: Path,
) -> PreTrainedModel:
    """Write `folder`, a plain one that transformers loads; adapters go to `adapter_folder` too, as
    they were trained. Returns the plain model.

    All is on the disk when it returns. `source` is where the questions came from, which the
    student's facts say.
    """
    facts, model = trained_with(student, source), student.model
    if adapter == "lora":
        save_adapter(model, adapter_folder)
        write_facts(adapter_folder, student.name, facts, adapter=True)
        sync_all(adapter_folder)
        model = merge_adapter(bare_model(model), adapter_folder)
    complete_sampling(model)
    model.save_pretrained(str(folder))
    student.tokenizer.save_pretrained(folder)
    write_facts(folder, student.name, facts)
    sync_all(folder)
    return model
