"""The pods of a run, and as a table: those that need a look before the others, no more than fit on a screen. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainingrun.cli.cluster_times import age
from trainingrun.cli.output import one_line, table
from trainingrun.cluster.kubernetes import nodes as node_objects
from trainingrun.cluster.kubernetes import pods as pod_objects
from trainingrun.cluster.kubernetes.objects import owner_uid, run_ref
from trainingrun.ports import Pod, PodPhase

_MESSAGE = 100  # characters


def pods_of(
    run: Mapping[str, Any],
    objects: Iterable[Mapping[str, Any]],
    now: float,
    nodes: Sequence[Mapping[str, Any]] | None = None,
) -> list[Pod]:
    """The pods that the run owns, by seat. Where `nodes` could not be looked at, they are taken to be well."""
    ref = run_ref(run)
    ours = [item for item in objects if owner_uid(item) == ref.uid]
    if nodes is None:
        ready = {str((item.get("spec") or {}).get("nodeName", "")): True for item in ours}
    else:
        ready = {node.name: node.ready for node in map(node_objects.translate, nodes)}
    found = (pod_objects.translate(item, ref, ready, now) for item in ours)
    return sorted((pod for pod in found if pod is not None), key=_seat)


def pods_table(pods: Sequence[Pod], now: float, most: int) -> str:
    """At most `most` of them, and what the others are."""
    shown = sorted(pods, key=lambda pod: not _needs_a_look(pod))[:most]
    rows = [
        (
            str(pod.slot),
            pod.name,
            pod.node or "-",
            phase_of(pod),
            str(pod.restarts),
            age(pod.created_at, now),
            ": ".join(part for part in (pod.reason, one_line(pod.message, _MESSAGE)) if part),
        )
        for pod in sorted(shown, key=_seat)
    ]
    text = table(("SLOT", "POD", "NODE", "PHASE", "RESTARTS", "AGE", "REASON"), rows)
    rest = Counter(phase_of(pod) for pod in pods if pod not in shown)
    more = ", ".join(f"{count} {phase}" for phase, count in rest.most_common())
    return f"{text}and {more}\n" if more else text


def phase_of(pod: Pod) -> str:
    """The phase, and what it hides: a pod that is asked to end is still Running."""
    if pod.terminating:
        return "Terminating"
    if pod.phase is PodPhase.RUNNING and not pod.ready:
        return "NotReady"
    return pod.phase.value


def pod_json(pod: Pod) -> dict[str, Any]:
    return {
        "name": pod.name,
        "slot": pod.slot,
        "incarnation": pod.incarnation,
        "node": pod.node,
        "phase": pod.phase.value,
        "ready": pod.ready,
        "terminating": pod.terminating,
        "restarts": pod.restarts,
        "reason": pod.reason,
        "message": pod.message,
    }


def _seat(pod: Pod) -> tuple[int, int]:
    return (pod.slot, pod.incarnation)


def _needs_a_look(pod: Pod) -> bool:
    return bool(pod.reason) or phase_of(pod) not in ("Running", "Succeeded")
