"""`spec.model.source`: the folder that the initial weights come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.location import path_of
from trainer.errors import ConfigError

FIELD = "spec.model.source.uri"


@dataclass(frozen=True)
class WeightsSource:
    folder: Path
    uri: str


def read_source(model: dict[str, Any]) -> WeightsSource | None:
    """None: the initial weights are random."""
    if model["init"] not in ("Config", "Weights"):
        raise ConfigError("spec.model.init", model["init"], "not supported", "use Config or Weights")
    source = model.get("source")
    if (model["init"] == "Weights") != bool(source):
        raise ConfigError(
            FIELD,
            source,
            f"spec.model.init is {model['init']}",
            "name a folder of weights with init Weights, and none with init Config",
        )
    return WeightsSource(path_of(source["uri"], FIELD), source["uri"]) if source else None
