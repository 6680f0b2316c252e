"""Damped least squares on logarithms of time, with priors: what `fit` needs of numerical methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

HUBER = 0.15  # residuals beyond count linearly


@dataclass(frozen=True)
class Parameter:
    """One coefficient of the model. `rows` that it can change; a prior of width `sigma` around `start`, in
    logarithms.
    """

    table: str
    key: str
    start: float
    sigma: float
    rows: np.ndarray


def solve(
    parameters: Sequence[Parameter],
    put: Callable[[Parameter, float], None],
    predict: Callable[[np.ndarray], np.ndarray],
    measured: np.ndarray,
    weights: np.ndarray,
    *,
    start: np.ndarray | None = None,
    iterations: int = 8,
    noise: float = 0.04,
    tail: float = math.inf,
) -> np.ndarray:
    """Logarithms of the parameters over their starts. `predict(rows)` gives logarithms of times; rows of
    weight 0 teach nothing, and residuals beyond `tail` hardly more: something else is wrong with those rows.
    """
    used = np.flatnonzero(weights)
    theta = np.zeros(len(parameters)) if start is None else start.copy()
    sigma = np.array([one.sigma for one in parameters])
    step = 0.02

    def apply(values: np.ndarray) -> None:
        for one, value in zip(parameters, values, strict=True):
            put(one, one.start * float(np.exp(value)))

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        apply(values)
        residual = np.zeros(len(measured))
        residual[used] = predict(used) - measured[used]
        size = np.abs(residual)
        cost = np.where(size < HUBER, 0.5 * residual**2, HUBER * (np.minimum(size, tail) - 0.5 * HUBER))
        far = size > tail
        cost[far] += HUBER * tail * (1 - tail / size[far])
        return float((weights * cost).sum() / noise**2 + 0.5 * ((values / sigma) ** 2).sum()), residual

    best, residual = loss(theta)
    damping = 1e-2
    for _ in range(iterations):
        apply(theta)
        base = np.zeros(len(measured))
        base[used] = predict(used)
        jacobian = np.zeros((len(measured), len(parameters)))
        for column, one in enumerate(parameters):
            rows = one.rows[weights[one.rows] > 0]
            if not len(rows):
                continue
            put(one, one.start * float(np.exp(theta[column] + step)))
            jacobian[rows, column] = (predict(rows) - base[rows]) / step
            put(one, one.start * float(np.exp(theta[column])))
        size = np.maximum(np.abs(residual), 1e-9)
        effective = weights * np.where(size < HUBER, 1.0, HUBER / size) / noise**2
        effective *= np.where(size > tail, (tail / size) ** 2, 1.0)
        normal = (jacobian * effective[:, None]).T @ jacobian + np.diag(1 / sigma**2)
        gradient = (jacobian * effective[:, None]).T @ residual + theta / sigma**2
        improved = False
        for _ in range(6):
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial = theta - np.clip(move, -0.7, 0.7)
            cost, trial_residual = loss(trial)
            if cost < best:
                improved = best - cost > 1e-4 * best
                theta, best, residual, damping = trial, cost, trial_residual, max(damping / 4, 1e-6)
                break
            damping *= 5
        if not improved:
            break
    apply(theta)
    return theta
