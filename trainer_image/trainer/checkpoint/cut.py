"""Whether a restore point is cut as the engine of the epoch needs it, before any of it is read.

The engine Native reads any cut of its own checkpoints. Flat buffers of the engine DeepSpeed fit only where they were
made: the same stage of ZeRO on as many ranks. Called by every rank; no other checkpoint of the run would fit better, so
what does not fit is an error of the configuration.
"""

from __future__ import annotations

from typing import Any

from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.snapshot_format import snapshot_name
from trainer.checkpoint.store import Place
from trainer.errors import ConfigError
from trainingrun.protocol.records import NATIVE, Epoch, RestoreSource, Rung


def check_cut(record: Epoch, location: Place) -> None:
    """Raises ConfigError. A checkpoint that cannot be looked at is left to the restore."""
    point, rung = record.restore, record.rung
    if point.source is RestoreSource.MEMORY and rung.engine != NATIVE and point.layout != rung.layout:
        raise _resized(snapshot_name(point.epoch, point.step), point.layout[1], rung)
    if point.source is not RestoreSource.DURABLE:
        return
    try:
        plan = read_manifest(location, point.manifest).plan
    except OSError:
        return
    _check_plan(point.manifest, plan, rung)


def _check_plan(name: str, plan: dict[str, Any], rung: Rung) -> None:
    engine, stage = plan.get("engine", NATIVE), plan.get("zeroStage", 0)
    if engine != rung.engine:
        raise ConfigError(
            "spec.parallelism.engine",
            rung.engine,
            f"checkpoint {name} was made by the engine {engine}, and neither reads the state of the other",
            f"use {engine}, or begin anew at another spec.checkpoint.location.uri",
        )
    if engine == NATIVE:
        return
    if plan["shard"] != rung.shard:
        raise _resized(name, plan["shard"], rung)
    if stage != rung.zero_stage:
        raise ConfigError(
            "spec.parallelism.deepspeed.zeroStage",
            rung.zero_stage,
            f"checkpoint {name} was made by ZeRO {stage}, whose buffers are laid out differently",
            f"set it to {stage}",
        )


def _resized(name: str, ranks: int, rung: Rung) -> ConfigError:
    return ConfigError(
        "spec.scale.maxNodes",
        rung.nodes,
        f"checkpoint {name} is cut for {ranks} processes, and {rung.nodes} nodes x {rung.processes_per_node} = "
        f"{rung.world}; a run of the engine {rung.engine} keeps its size",
        f"give it {ranks} processes, or begin anew with the engine {NATIVE}, which resizes",
    )
