"""`spec.model.source`: the folder that the initial weights come from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.location import path_of
from trainer.errors import ConfigError
from trainingrun.protocol.source_config import CONFIG_FILE, misfits

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


def check_config_file(model: dict[str, Any]) -> None:
    """Raises ConfigError when the folder's config.json is of another model than `spec.model.config`. Without torch, so
    before anything else; a file that cannot be read is left to whoever reads the weights.
    """
    source = read_source(model)
    if source is None:
        return
    try:
        content = json.loads((source.folder / CONFIG_FILE).read_text())
    except (OSError, ValueError):
        return
    found = misfits(model["config"], content) if isinstance(content, dict) else ()
    for one in found:
        given = "left out" if one.given is None else one.given
        raise ConfigError(f"spec.model.config.{one.key}", given, f"{one.problem} ({source.uri})", one.fix)
