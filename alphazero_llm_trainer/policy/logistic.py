"""Logistic regression by Newton's method: what calibrates values and process rewards and combines verifiers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RIDGE = 1e-6  # of the mean loss, on the bias and, unless another is given, on the standardised weights


@dataclass(frozen=True, slots=True)
class Logistic:
    """`P = sigmoid(weights . (x - centre) / scale + bias)`; all vectors are `[F]`."""

    centre: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: float

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """`[N, F]` -> probabilities `[N]`."""
        return sigmoid(((rows - self.centre) / self.scale) @ self.weights + self.bias)

    @property
    def plain(self) -> list[float]:
        """The weights of the features as they are, and the bias after them."""
        weights = self.weights / self.scale
        return [*weights.tolist(), float(self.bias - weights @ self.centre)]


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0)))


def fit_logistic(
    rows: np.ndarray, labels: np.ndarray, counts: np.ndarray | None = None, ridge: float = RIDGE
) -> Logistic:
    """Ridge regression of `labels` `[N]` in [0, 1] on `rows` `[N, F]`, each of which counts `counts` `[N]` times (1)."""
    share = np.full(len(rows), 1 / len(rows)) if counts is None else counts / counts.sum()
    centre, scale = rows.mean(0), rows.std(0)
    scale = np.where(scale < 1e-9, 1.0, scale)
    x = np.hstack(((rows - centre) / scale, np.ones((len(rows), 1))))
    penalty = np.append(np.full(rows.shape[1], ridge), RIDGE)
    weights = np.zeros(x.shape[1])

    def loss(at: np.ndarray) -> float:
        logit = x @ at
        return float(share @ (np.logaddexp(0.0, logit) - labels * logit) + 0.5 * penalty @ at**2)

    for _ in range(100):
        p = sigmoid(x @ weights)
        gradient = x.T @ (share * (p - labels)) + penalty * weights
        if np.abs(gradient).max() < 1e-9:
            break
        curvature = (x * (share * p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        step, stride = np.linalg.solve(curvature, gradient), 1.0
        while loss(weights - stride * step) > loss(weights) and stride > 1e-6:
            stride /= 2
        weights = weights - stride * step
    return Logistic(centre, scale, weights[:-1], float(weights[-1]))
