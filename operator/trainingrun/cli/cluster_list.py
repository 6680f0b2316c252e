"""The runs of a namespace, or of all, as a table and as data. Pure; called by `trainingrun list`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainingrun.api.constants import GROUP, SINGULAR
from trainingrun.cli.cluster_state import outcome_of, state_word, status_of, steps_text
from trainingrun.cli.cluster_story import SCHEMA_VERSION
from trainingrun.cli.cluster_times import age, created_of
from trainingrun.cli.output import table

_HEADERS = ("NAME", "TASK", "STATE", "NODES", "STEP", "LOSS", "EPOCH", "GOODPUT", "CHECKPOINT", "AGE")


def runs_table(runs: Sequence[Mapping[str, Any]], now: float, everywhere: bool) -> str:
    rows = [_row(run, now) for run in runs]
    if not everywhere:
        return table(_HEADERS, rows)
    spaces = [run["metadata"]["namespace"] for run in runs]
    return table(("NAMESPACE", *_HEADERS), [(space, *row) for space, row in zip(spaces, rows, strict=True)])


def names(runs: Sequence[Mapping[str, Any]]) -> str:
    """As kubectl's `-o name`."""
    return "\n".join(f"{SINGULAR}.{GROUP}/{run['metadata']['name']}" for run in runs)


def runs_json(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"schemaVersion": SCHEMA_VERSION, "runs": [_summary(run) for run in runs]}


def _summary(run: Mapping[str, Any]) -> dict[str, Any]:
    meta, status = run["metadata"], status_of(run)
    return {
        "name": meta["name"],
        "namespace": meta["namespace"],
        "uid": meta["uid"],
        "created": meta.get("creationTimestamp"),
        "task": (run.get("spec") or {}).get("task"),
        "state": state_word(run),
        "outcome": outcome_of(status) or None,
        "membership": status.get("membership"),
        "progress": status.get("progress"),
        "checkpoint": status.get("checkpoint"),
        "goodputPermille": (status.get("goodput") or {}).get("permille"),
    }


def _row(run: Mapping[str, Any], now: float) -> tuple[str, ...]:
    status = status_of(run)
    membership, progress = status.get("membership") or {}, status.get("progress") or {}
    durable = (status.get("checkpoint") or {}).get("durable") or {}
    permille = (status.get("goodput") or {}).get("permille")
    return (
        run["metadata"]["name"],
        (run.get("spec") or {}).get("task", "-"),
        state_word(run),
        membership.get("summary", "-"),
        steps_text(status),
        f"{float(progress['loss']):.4f}" if "loss" in progress else "-",
        str(membership.get("epoch", "-")),
        f"{permille / 10:.1f} %" if permille is not None else "-",
        str(durable.get("step", "-")),
        age(created_of(run), now),
    )
