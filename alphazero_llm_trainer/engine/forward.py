"""Which forward computes rows of the prefix tree: the C kernels' where they fit the model, else transformers' own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.sections import EngineConfig
from .native import NativeLlama
from .prefix_tree import PrefixTree
from .queue_rows import Forward

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def make_forward(
    model: PreTrainedModel, tree: PrefixTree, settings: EngineConfig, context: int, max_batch: int
) -> Forward:
    """The fastest forward that computes the model's function here.

    Its weights may be copies: make a new one when they have changed.
    """
    if settings.native == "auto" and (native := NativeLlama.of(model, tree, settings.dtype)) is not None:
        return native
    from .library_forward import LibraryForward

    return LibraryForward(model, tree, max_batch, context)
