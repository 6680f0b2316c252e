"""`spec.checkpoint`: where the state is kept, how often, and how many of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.checkpoint.store import Store, store_of


@dataclass(frozen=True)
class CheckpointConfig:
    location: Store
    memory_interval_steps: int | None  # None: measured; 0: off
    durable_interval_seconds: float | None
    durable_interval_steps: int | None
    keep_last: int | None


def read_checkpoint(checkpoint: dict[str, Any]) -> CheckpointConfig:
    durable = checkpoint["durable"]
    return CheckpointConfig(
        location=store_of(checkpoint["location"]["uri"]),
        memory_interval_steps=checkpoint["memory"]["intervalSteps"],
        durable_interval_seconds=durable["intervalSeconds"],
        durable_interval_steps=durable["intervalSteps"],
        keep_last=durable["keepLast"],
    )
