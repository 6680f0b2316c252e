"""`spec.data`, as far as a rank decides by it; the sources themselves are read by `trainer.data`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DataConfig:
    seed: int


def read_data(data: dict[str, Any]) -> DataConfig:
    return DataConfig(seed=int(data["seed"]))
