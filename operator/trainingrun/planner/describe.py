"""A plan as JSON: what the revision keeps, `plan -o json` prints, and status shows a part of. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from trainingrun.planner.types import MemoryBill, PlannedRung, PlanPath


def describe(path: PlanPath) -> dict[str, Any]:
    """camelCase keys, as in the API; bytes, seconds and shares from 0 to 1 unless a key says permille."""
    return {
        "plannerVersion": path.planner_version,
        "parameters": path.parameters,
        "reason": path.reason,
        "rungs": [describe_rung(planned) for planned in path.rungs],
    }


def describe_rung(planned: PlannedRung) -> dict[str, Any]:
    rung = planned.rung
    return {
        "nodes": rung.nodes,
        "processesPerNode": rung.processes_per_node,
        "useful": rung.useful,
        "reason": rung.reason,
        "axes": {
            "pipeline": rung.pipeline,
            "data": rung.data,
            "replicate": rung.replicate,
            "shard": rung.shard,
            "context": rung.context,
            "tensor": rung.tensor,
        },
        "engine": rung.engine,
        "zeroStage": rung.zero_stage,
        "schedule": rung.schedule,
        "activationCheckpointing": rung.activation_checkpointing,
        "microBatch": rung.micro_batch,
        "accumulation": rung.accumulation,
        "paddingSequences": rung.padding_sequences,
        "paddingPermille": round(1000 * planned.padding),
        "stateCopies": rung.state_copies,
        "joinBytes": planned.join_bytes,
        "joinSeconds": planned.join_seconds,
        "buddies": rung.buddies,
        "memory": describe_bill(planned.memory),
        "availableBytes": planned.available_bytes,
        "stepSeconds": planned.step_seconds,
        "tokensPerSecond": planned.tokens_per_second,
        "modelFlopsPerStep": planned.model_flops_per_step,
        "flopsUtilisation": planned.flops_utilisation,
        "bubble": planned.bubble,
        "communication": planned.communication,
        "reasons": list(planned.reasons),
    }


def describe_bill(bill: MemoryBill) -> dict[str, int]:
    return {**asdict(bill), "total": bill.total}
