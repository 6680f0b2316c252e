"""Corrections that measurements teach: how much longer (or larger) things are than predicted, by ever narrower groups.

A prediction's logarithm is corrected by the sum of what each level knows of its group: for instance by source, by
(framework, model), by (framework, model, accelerator). Each group's share is shrunk towards nothing by how few
measurements it has, so that one outlier teaches little, and a group that nobody measured changes nothing. Robust: a
measurement that is far off counts as one that is a little off. Pure arithmetic; the tables are data that a command
(or the run that was measured) keeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ROUNDS = 12  # enough where groups have many measurements; few that hardly vary need more until shares settle


@dataclass(frozen=True)
class Level:
    """`fields` name a group; `width` is how far groups of this level lie apart (standard deviation of logarithms)."""

    fields: tuple[str, ...]
    width: float

    def key(self, names: Mapping[str, str]) -> str:
        return "|".join(names.get(field, "") for field in self.fields)


@dataclass(frozen=True)
class Observation:
    names: Mapping[str, str]  # field -> value
    log_ratio: float  # measured over predicted
    weight: float = 1.0


@dataclass(frozen=True)
class Corrections:
    levels: tuple[Level, ...]
    tables: tuple[Mapping[str, float], ...]  # of each level: group -> share of the logarithm

    def logarithm(self, names: Mapping[str, str]) -> float:
        return sum(
            table.get(level.key(names), 0.0) for level, table in zip(self.levels, self.tables, strict=True)
        )

    def factor(self, names: Mapping[str, str]) -> float:
        """What to multiply a prediction with; 1 where nothing is known."""
        return math.exp(self.logarithm(names))


NONE = Corrections((), ())


def learn(
    observations: Sequence[Observation],
    levels: Sequence[Level],
    *,
    noise: float = 0.05,
    far: float = 0.25,
    rounds: int = ROUNDS,
) -> Corrections:
    """Shares of all levels together, each given the others in turn. `noise`: how much the same thing varies when it is
    measured again; `far`: residuals beyond it count as if they were there.
    """
    keys = [[level.key(one.names) for one in observations] for level in levels]
    tables: list[dict[str, float]] = [{} for _ in levels]
    current = [0.0] * len(observations)
    for _ in range(rounds):
        for level, own, table in zip(levels, keys, tables, strict=True):
            sums: dict[str, float] = {}
            weights: dict[str, float] = {}
            for index, (one, key) in enumerate(zip(observations, own, strict=True)):
                residual = one.log_ratio - current[index]
                size = abs(residual)
                weight = one.weight if size <= far else one.weight * far / size
                sums[key] = sums.get(key, 0.0) + weight * (residual + table.get(key, 0.0))
                weights[key] = weights.get(key, 0.0) + weight
            prior = (noise / level.width) ** 2
            fresh = {key: total / (weights[key] + prior) for key, total in sums.items()}
            for index, key in enumerate(own):
                current[index] += fresh[key] - table.get(key, 0.0)
            table.update(fresh)
    return Corrections(tuple(levels), tuple(tables))
