"""The events of a run and of its pods, from the cluster's event objects. Pure; read by `events` and `describe`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.api.conditions import timestamp
from trainingrun.api.constants import KIND
from trainingrun.cli.cluster_times import age, created_of
from trainingrun.cli.output import one_line, table
from trainingrun.cluster.kubernetes.objects import seconds


@dataclass(frozen=True)
class ClusterEvent:
    at: float  # seconds since 1970, of the newest time it happened
    type: str  # Normal | Warning
    reason: str
    message: str
    object: str  # "run", or the name of a pod
    count: int = 1


def events_of(run: Mapping[str, Any], objects: Iterable[Mapping[str, Any]]) -> list[ClusterEvent]:
    """Those about this run and its pods, oldest first.

    A pod may be gone, so it is known by its name, and by not being older than the run.
    """
    meta = run["metadata"]
    pod = re.compile(re.escape(meta["name"]) + r"-\d+-\d+")
    born = created_of(run)
    found = []
    for item in objects:
        about = item.get("involvedObject") or {}
        event = _event(item, about)
        of_pod = about.get("kind") == "Pod" and pod.fullmatch(about.get("name", "")) and event.at >= born
        if (about.get("kind") == KIND and about.get("uid") == meta["uid"]) or of_pod:
            found.append(event)
    return sorted(found, key=lambda event: event.at)


def events_table(events: Iterable[ClusterEvent], now: float, limit: int = 0) -> str:
    """`limit`: longest message, 0 for any."""
    rows = []
    for event in events:
        text = one_line(event.message, limit)
        times = f" (x{event.count})" if event.count > 1 else ""
        rows.append((age(event.at, now), event.type, event.reason, event.object, text + times))
    return table(("AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"), rows)


def event_json(event: ClusterEvent) -> dict[str, Any]:
    return {
        "time": timestamp(event.at),
        "type": event.type,
        "reason": event.reason,
        "object": event.object,
        "message": event.message,
        "count": event.count,
    }


def _event(item: Mapping[str, Any], about: Mapping[str, Any]) -> ClusterEvent:
    """Both kinds of events are met with: those that count in `count`, and those that do in `series`."""
    series = item.get("series") or {}
    times = (series.get("lastObservedTime"), item.get("lastTimestamp"), item.get("eventTime"))
    at = max((seconds(time) for time in times if time), default=0.0) or created_of(item)
    return ClusterEvent(
        at=at,
        type=item.get("type") or "Normal",
        reason=item.get("reason") or "",
        message=item.get("message") or "",
        object="run" if about.get("kind") == KIND else about.get("name", ""),
        count=int(series.get("count") or item.get("count") or 1),
    )
