"""A trained judge's folder as it is read: what value functions and process reward models have in common.

A folder holds a card (kind, figures and the hashes of the other files; written last, so a folder without it was never
finished), a file of numbers, and a model of its own. Over a quantised base it holds a LoRA adapter instead, which computes
in the policy's own layers and belongs to the policies of one base.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from ..errors import CheckpointError
from ..files import read_object
from .adapters import AdapterView, fingerprint, load_adapter
from .student import Student

ADAPTER = "adapter"


@dataclass(frozen=True, slots=True)
class JudgeFolder:
    """What a kind of judge calls its files, and itself in messages.

    `keys` are those that no card is without, `hint` says what to do where there is none, `adapter` names its adapters.
    """

    name: str
    card: str
    numbers: str
    keys: frozenset[str]
    hint: str
    adapter: str

    def read_card(self, folder: Path) -> dict[str, Any]:
        """The card, after a check of every file it names."""
        try:
            card = read_object(folder / self.card)
        except OSError as error:
            raise CheckpointError(f"{self.name} {folder} has no {self.card}: {self.hint}") from error
        except ValueError as error:
            raise self.broken(folder, f"has a broken {self.card}") from error
        if not {"kind", "policy", "vocabulary", "files", *self.keys} <= card.keys():
            raise self.broken(folder, f"has a broken {self.card}")
        for name, expected in card["files"].items():
            try:
                with (folder / name).open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise self.broken(folder, f"lacks {name}") from error
            if found != expected:
                raise self.broken(folder, f"has a truncated or changed {name}")
        return card

    def read_numbers(self, folder: Path, *needed: str) -> dict[str, torch.Tensor]:
        """The file of numbers, which has those that are `needed`."""
        try:
            tensors = load_file(folder / self.numbers)
        except (OSError, SafetensorError) as error:
            raise self.broken(folder, f"has no readable {self.numbers}") from error
        if not tensors.keys() >= set(needed):
            raise self.broken(folder, f"has no readable {self.numbers}")
        return tensors

    def read_model(self, folder: Path, student: Student, card: dict[str, Any], kind: Any) -> Any:
        """The folder's model, of transformers' class `kind`; or the student's own layers under the folder's adapter."""
        if (folder / ADAPTER).is_dir():
            if not on_base(card, student):
                raise CheckpointError(
                    f"{self.name} {folder} is an adapter trained on other weights than student {student.name} has: name"
                    f" that student's folder, or train a {self.name} for this one"
                )
            digest = hashlib.sha256("".join(f"{name}{found}" for name, found in sorted(card["files"].items())).encode())
            name = f"{self.adapter}-{digest.hexdigest()[:8]}"
            load_adapter(student.model, folder / ADAPTER, name)
            return AdapterView(student.model, name)
        try:
            model = kind.from_pretrained(folder, dtype=getattr(torch, student.spec.dtype))
        except (OSError, ValueError, RuntimeError) as error:
            raise self.broken(folder, "has no readable model") from error
        weight: Any = student.model.get_input_embeddings().weight
        return model.to(weight.device).eval()

    def broken(self, folder: Path, what: str) -> CheckpointError:
        return CheckpointError(f"{self.name} {folder} {what}: train it again")


def on_base(card: dict[str, Any], student: Student) -> bool:
    """Whether an adapter's card names the base of `student`'s policy. Cards of version 0.3 name the policy instead."""
    if "base" in card:
        return card["base"] == fingerprint(student.model, None)
    return card["policy"] == fingerprint(student.model)
