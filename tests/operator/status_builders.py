"""The status of a run that trains, as the API stores it: one dictionary for every test that reads one.

Tests name only the blocks that matter to them. Whether the API would take it is in test_api_status.
"""

from __future__ import annotations

from typing import Any

from tests.operator.fake_port import RUN

from trainingrun.api.conditions import set_condition, timestamp

NOW = 1_796_040_000.0
CONDITIONS = (
    ("Ready", "True", "Training", "2 of 2 nodes"),
    ("Reconciling", "False", "Steady", ""),
    ("Stalled", "False", "NotStalled", ""),
    ("Planned", "True", "Planned", "1 to 2 nodes"),
    ("CheckpointFresh", "True", "CheckpointSaved", "step 120"),
    ("Complete", "False", "NotFinished", ""),
    ("Failed", "False", "NotFailed", ""),
)


def a_status(**blocks: Any) -> dict[str, Any]:
    """At NOW, with `blocks` added or replaced; None leaves one out."""
    status = {
        "observedGeneration": 1,
        "conditions": some_conditions(),
        "resolved": {"revision": f"{RUN}-r1", "planner": "0.1.0", "dataFingerprint": "blake2b:77"},
        "plan": {
            "nodes": 2,
            "axes": {"data": 4, "replicate": 2, "shard": 2, "tensor": 1, "context": 1, "pipeline": 1},
            "microBatch": 4,
            "accumulation": 2,
            "paddingPermille": 0,
            "stateCopies": 2,
            "memoryMiB": 812,
            "availableMiB": 2048,
            "stepMillis": 390,
            "predictedStepMillis": 410,
            "reason": "data parallelism alone fits",
        },
        "membership": {
            "epoch": 2,
            "cause": "Infrastructure",
            "nodes": {"training": 2, "joining": 0, "pending": 0, "terminating": 0},
            "summary": "2/2",
            "since": timestamp(NOW - 600),
        },
        "progress": {
            "step": 140,
            "totalSteps": 300,
            "tokens": 573440,
            "loss": "3.4182",
            "tokensPerSecond": 10503,
            "estimatedCompletionTime": timestamp(NOW + 62),
            "updateTime": timestamp(NOW - 3),
        },
        "checkpoint": {
            "memoryStep": 139,
            "durable": {"step": 120, "epoch": 2, "manifest": "step-00000120.e0002"},
        },
        "disruptions": {
            "accountedEpoch": 2,
            "byCause": [{"cause": "Infrastructure", "count": 1}],
            "lostSteps": 1,
            "recent": [
                {
                    "epoch": 2,
                    "cause": "Infrastructure",
                    "node": "node-1",
                    "recoverMillis": 1800,
                    "source": "Memory",
                    "lostSteps": 1,
                }
            ],
        },
        "goodput": {
            "permille": 941,
            "wallSeconds": 1200,
            "productiveSeconds": 1129,
            "lost": [{"part": "Restore", "seconds": 7}, {"part": "Start", "seconds": 64}],
        },
        "accounting": {
            "productiveMillis": 1_129_000,
            "lost": [{"part": "Restore", "millis": 7_000}, {"part": "Start", "millis": 64_000}],
            "furthestStep": 140,
            "durableSince": int(NOW - 242),
            "times": [{"cause": "Infrastructure", "at": int(NOW - 602), "count": 1}],
            "measured": [
                {
                    "nodes": 2,
                    "steps": 120,
                    "stepMicros": 210_000,
                    "peakBytes": 0,
                    "microBatch": 8,
                    "recompute": "None",
                }
            ],
            "ended": [],
        },
    }
    return {name: block for name, block in (status | blocks).items() if block is not None}


def some_conditions(**changes: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Those of a run that trains: `some_conditions(Ready=("False", "Recovering", "why"))`."""
    found: list[dict[str, Any]] = []
    for kind, *rest in CONDITIONS:
        status, reason, message = changes.get(kind, tuple(rest))
        found = set_condition(found, kind, status, reason, message, 1, NOW - 600)  # type: ignore[arg-type]
    return found


def over(kind: str, reason: str = "", message: str = "") -> list[dict[str, Any]]:
    """Conditions of a run that is Complete, or Failed."""
    if kind == "Complete":
        return some_conditions(Complete=("True", "Completed", ""), Ready=("True", "Completed", "done"))
    said = (reason or "RestartBudgetSpent", message or "Application: 4 failures")
    return some_conditions(Failed=("True", *said), Ready=("False", *said), Stalled=("True", *said))
