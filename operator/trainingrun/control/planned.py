"""The block `status.plan`: how the run trains at its present size, with what the planner predicted for that
size.

The planner's answer is frozen in the revision as plain data; reading it back is the only thing that
happens here. Pure; called by `reporting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainingrun.control.ledger import summary_of
from trainingrun.control.observed import Observed
from trainingrun.control.seats import wanted_size
from trainingrun.protocol.records import Revision, Rung

_MIB = 2**20
_REASON_LIMIT = 1024  # characters


def plan_block(observed: Observed, revision: Revision) -> dict[str, Any]:
    """The plan of the size that trains; of the size that is wanted while none does."""
    rung = _present_rung(observed, revision)
    predicted = _prediction(revision.plan, rung.nodes)
    computed = rung.data * rung.accumulation * rung.micro_batch
    block: dict[str, Any] = {
        "nodes": rung.nodes,
        "axes": {
            "data": rung.data,
            "replicate": rung.replicate,
            "shard": rung.shard,
            "tensor": rung.tensor,
            "context": rung.context,
            "pipeline": rung.pipeline,
        },
        "microBatch": rung.micro_batch,
        "accumulation": rung.accumulation,
        "paddingPermille": round(1000 * rung.padding_sequences / computed),
        "stateCopies": rung.state_copies,
        "memoryMiB": round(_of_a_process(predicted.get("memory") or {}) / _MIB),
        "availableMiB": round(predicted.get("availableBytes", 0) / _MIB),
        "predictedStepMillis": round(1000 * predicted.get("stepSeconds", 0.0)),
        "reason": _reason(rung, revision)[:_REASON_LIMIT],
    }
    measured = _measured_step(observed)
    if measured:
        block["stepMillis"] = measured
    return block


def _reason(rung: Rung, revision: Revision) -> str:
    reason = rung.reason or str(revision.plan.get("reason", ""))
    return f"{reason}; each node keeps the snapshots of a buddy too" if rung.buddies else reason


def _of_a_process(bill: Mapping[str, int]) -> int:
    """Bytes; what stands beside accelerators, in the memory of the host, is not theirs."""
    return sum(size for part, size in bill.items() if part != "host")


def _present_rung(observed: Observed, revision: Revision) -> Rung:
    if observed.epoch is not None:
        return observed.epoch.rung
    wanted = [
        rung for rung in revision.rungs if rung.useful and rung.nodes <= wanted_size(observed, revision)
    ]
    return (wanted or revision.rungs)[-1]


def _prediction(plan: Mapping[str, Any], nodes: int) -> Mapping[str, Any]:
    """What `PlannedRung` says of this size, in its JSON form."""
    found: list[Mapping[str, Any]] = [
        item for item in plan.get("rungs") or [] if item["rung"]["nodes"] == nodes
    ]
    return found[0] if found else {}


def _measured_step(observed: Observed) -> int:
    if observed.view is None:
        old: Mapping[str, Any] = observed.run.status.get("plan") or {}
        return int(old.get("stepMillis", 0))
    if observed.view.progress is None:
        return 0
    return round(1000 * summary_of(observed.epoch, observed.view.progress.summary).step_seconds)
