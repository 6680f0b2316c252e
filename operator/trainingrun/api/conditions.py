"""Conditions of a TrainingRun: how one is set, and those that every run has from the beginning.

Pure: time is a parameter. Called by the controller, the one writer of status, and for the CRD's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from trainingrun.api.constants import ConditionType, Reason

Status = Literal["True", "False", "Unknown"]

MESSAGE_LIMIT = 2048
"""Longest message of a condition, in characters; longer ones are cut."""


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as the API writes times: RFC 3339 in UTC, whole seconds, `2026-11-30T03:04:05Z`."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(
    conditions: Iterable[Mapping[str, Any]],
    type: str,
    status: Status,
    reason: str,
    message: str,
    generation: int,
    now: float,
) -> list[dict[str, Any]]:
    """The list with this one condition set; its place and all others stay as they are.

    `lastTransitionTime` changes only when `status` does: a new reason or message is no transition.
    """
    updated = [dict(condition) for condition in conditions]
    before = next((one for one in updated if one["type"] == type), None)
    is_same = before is not None and before["status"] == status
    condition = {
        "type": str(type),
        "status": status,
        "reason": str(reason),
        "message": cut(one_line(message), MESSAGE_LIMIT),
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if before and is_same else timestamp(now),
    }
    if before is None:
        return [*updated, condition]
    return [condition if one is before else one for one in updated]


def initial_conditions(generation: int, now: float) -> list[dict[str, Any]]:
    """Every condition, Unknown: a run that nobody has looked at must not pass for a healthy one."""
    conditions: list[dict[str, Any]] = []
    for type in ConditionType:
        message = "waiting for the controller"
        conditions = set_condition(conditions, type, "Unknown", Reason.PENDING, message, generation, now)
    return conditions


def find_condition(conditions: Iterable[Mapping[str, Any]], type: str) -> Mapping[str, Any] | None:
    return next((condition for condition in conditions if condition["type"] == type), None)


def is_true(conditions: Iterable[Mapping[str, Any]], type: str) -> bool:
    condition = find_condition(conditions, type)
    return condition is not None and condition["status"] == "True"


def one_line(text: str) -> str:
    """The lines of `text` as one, because tables cut a message at its first line break: `…; hint: …`."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return "; ".join(line for line in lines if line).replace(":; ", ": ")


def cut(text: str, limit: int) -> str:
    """`text`, at most `limit` characters long; what is cut off is the end."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
