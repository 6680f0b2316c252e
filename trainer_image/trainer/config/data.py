"""`spec.data`: the order of the samples, the mixture and the packing; the sources are read by `trainer.data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.errors import ConfigError

PACKINGS = ("Concatenate", "BestFit", "None")


@dataclass(frozen=True)
class MixtureStage:
    after_tokens: int  # of the run, counted as its duration is: sequences x sequenceLength
    weights: tuple[int, ...]  # by source; shares of tokens


@dataclass(frozen=True)
class DataConfig:
    seed: int
    packing: str
    sources: tuple[str, ...]  # names
    stages: tuple[MixtureStage, ...]  # at least one; the first from 0


def read_data(data: dict[str, Any], run_tokens: int) -> DataConfig:
    """`run_tokens`: what the whole run reads. Raises ConfigError."""
    packing = data.get("packing") or "Concatenate"
    if packing not in PACKINGS:
        raise ConfigError("spec.data.packing", packing, "not supported", f"use one of {', '.join(PACKINGS)}")
    names = tuple(str(source.get("name", "")) for source in data["sources"])
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError(
                f"spec.data.sources[{number}].name", name, "is given twice", "rename one of the two"
            )
    stages = [MixtureStage(0, _weights(data["sources"]))]
    for number, stage in enumerate(data.get("stages") or []):
        where = f"spec.data.stages[{number}]"
        after = int(stage["afterTokens"])
        if after <= stages[-1].after_tokens:
            problem = f"does not come after the stage before it (from {stages[-1].after_tokens} tokens)"
            raise ConfigError(f"{where}.afterTokens", after, problem, "write the stages in ascending order")
        if after >= run_tokens:
            problem = f"the run is over after {run_tokens} tokens"
            raise ConfigError(f"{where}.afterTokens", after, problem, "lower it, or remove the stage")
        stages.append(MixtureStage(after, _stage_weights(stage["weights"], names, f"{where}.weights")))
    return DataConfig(int(data["seed"]), packing, names, tuple(stages))


def _weights(sources: list[dict[str, Any]]) -> tuple[int, ...]:
    found = []
    for number, source in enumerate(sources):
        weight = source.get("weight")
        if weight is None and len(sources) > 1:
            problem = f"needed, as there are {len(sources)} sources"
            raise ConfigError(
                f"spec.data.sources[{number}].weight", weight, problem, "set its share of the tokens"
            )
        found.append(1 if weight is None else int(weight))
    return _checked(found, "spec.data.sources", "weight")


def _stage_weights(weights: list[dict[str, Any]], names: tuple[str, ...], where: str) -> tuple[int, ...]:
    found = [0] * len(names)
    seen: set[str] = set()
    for number, entry in enumerate(weights):
        name = entry["name"]
        if name not in names:
            raise ConfigError(
                f"{where}[{number}].name", name, "is no source", f"use one of {', '.join(names)}"
            )
        if name in seen:
            raise ConfigError(f"{where}[{number}].name", name, "is given twice", "keep one of the two")
        seen.add(name)
        found[names.index(name)] = int(entry["weight"])
    return _checked(found, where, "weight")


def _checked(weights: list[int], where: str, key: str) -> tuple[int, ...]:
    for number, weight in enumerate(weights):
        if weight < 0:
            raise ConfigError(f"{where}[{number}].{key}", weight, "less than 0", "use a share of the tokens")
    if not sum(weights):
        raise ConfigError(
            where, weights, "no source has a weight, so nothing is read", "raise a weight above 0"
        )
    return tuple(weights)
