"""Events of a run (events.k8s.io/v1): one object for each thing that is said, counted when it is said again.

The name is a hash of what is said about which run, so that two controllers, or one that died in between, say it once.
Pure; written by the adapter. Nothing is ever decided from events.
"""

from __future__ import annotations

import hashlib
from typing import Any

from trainingrun.api.constants import API_VERSION, GROUP, KIND
from trainingrun.cluster.kubernetes.objects import Object, RunRef, micro_time
from trainingrun.ports import EventRecord

REPORTER = f"{GROUP}/controller"
NOTE_BYTES = 1024  # the API server takes no more
_WORD = 128  # characters of an instance or a reason


def event_name(run: RunRef, event: EventRecord) -> str:
    text = "\n".join((run.uid, event.type, event.reason, event.message))
    return f"{run.name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def new_event(run: RunRef, event: EventRecord, instance: str) -> dict[str, Any]:
    """`instance`: which controller says it, for people."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event_name(run, event), "namespace": run.namespace},
        "eventTime": micro_time(event.at),
        "reportingController": REPORTER,
        "reportingInstance": instance[:_WORD],
        "action": str(event.reason)[:_WORD],
        "reason": str(event.reason)[:_WORD],
        "type": event.type,
        "note": _cut(event.message),
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": run.namespace,
            "name": run.name,
            "uid": run.uid,
        },
    }


def said_again(known: Object, event: EventRecord) -> dict[str, Any]:
    """The merge patch that counts it once more. An event may change in nothing else."""
    count = int((known.get("series") or {}).get("count") or 1)
    return {"series": {"count": count + 1, "lastObservedTime": micro_time(event.at)}}


def _cut(text: str) -> str:
    data = text.encode()
    return text if len(data) <= NOTE_BYTES else data[: NOTE_BYTES - 3].decode(errors="ignore") + "…"
