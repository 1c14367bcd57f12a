"""How fast a student of a shape is on this machine: a product of its own size, timed for a moment."""

from __future__ import annotations

import time

from ..config.sections import ModelShape, StudentModel
from .memory import Counts

SECONDS = 0.4  # that are measured
COPIES, BYTES = 6, 1 << 28  # of the matrix, at most: a cache doesn't hold them all, as it doesn't hold a model
MOST = 10_000.0  # tokens a second: a small student's products are not what takes time
PASSES = 3  # of an update over a token: one forward, two of the size back


def tokens_a_second(shape: ModelShape, spec: StudentModel, rows: int) -> float:
    """Tokens a second that go through the student, `rows` at once, by the time of a product with its widest matrix."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, spec.dtype)
    copies = max(min(COPIES, BYTES // (dtype.itemsize * shape.intermediate * shape.hidden)), 1)
    weights = [torch.ones(shape.intermediate, shape.hidden, device=device, dtype=dtype) for _ in range(copies)]
    tokens = torch.ones(rows, shape.hidden, device=device, dtype=dtype)
    done, began = -1, time.perf_counter()
    while done < 1 or time.perf_counter() - began < SECONDS:
        for weight in weights:
            product = tokens @ weight.T
        float(product[0, 0])  # waits for a GPU
        done += 1
        if not done:  # the first turn wakes threads and kernels up
            began = time.perf_counter()
    each = (time.perf_counter() - began) / (done * copies)
    counts = Counts.of(shape, spec.lora)
    whole = counts.linear + shape.vocabulary * shape.hidden  # the head's too
    return min(rows / (each * whole / (shape.intermediate * shape.hidden)), MOST)
