"""A model's weights from a folder or the hub: all of them, in their shapes, and numbers; else an error, never random ones."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel
from transformers import logging as transformers_logging

from ..errors import CheckpointError

NAMED = 3  # weights that an error names


def load_weights(kind: Any, source: str, **options: Any) -> PreTrainedModel:
    """`kind.from_pretrained(source, **options)` for one of transformers' auto classes.

    transformers fills up what a file lacks with random numbers and tells so in a table on stderr; here that is an error.

    Raises:
        CheckpointError: weights are missing, have another shape than config.json says, or are not finite.
    """
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        # Wrong shapes are taken here, so that the error below can name them.
        model, report = kind.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    finally:
        transformers_logging.set_verbosity(verbosity)
    faults = {
        "lacks": sorted(report["missing_keys"]),
        "has another shape than config.json says for": sorted(key for key, *_ in report["mismatched_keys"]),
        "has numbers that are not finite in": not_finite(model),
    }
    for fault, names in faults.items():
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            raise CheckpointError(
                f"model {source} {fault} {', '.join(names[:NAMED])}{more}: copy its files there again, or write them anew"
            )
    return model


def not_finite(model: PreTrainedModel) -> list[str]:
    """The names of the weights with NaN or infinite numbers. Those packed into 4 or 8 bits are not looked at."""
    # Least and largest are NaN where any number is; unlike `isfinite` they need no memory of the weight's size.
    return [
        name
        for name, weight in model.named_parameters()
        if weight.dtype.itemsize > 1
        and weight.numel()
        and not all(bound.isfinite() for bound in weight.detach().aminmax())
    ]
