"""`trainingrun logs`: what the pods of a run print, merged in the order of time, once or for as long as it goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from typing import Any

from trainingrun.api.errors import Missing
from trainingrun.cli.cluster_access import NotAccepted, Place, find_run
from trainingrun.cli.cluster_follow import Line, Tails
from trainingrun.cli.cluster_pods import pods_of
from trainingrun.cli.cluster_state import outcome_of, status_of
from trainingrun.cli.cluster_story import SCHEMA_VERSION
from trainingrun.cli.output import one_line, say
from trainingrun.cluster.kubernetes.objects import PODS, core_path, runs_path, selector
from trainingrun.ports import Pod, PodPhase, Unavailable

LOOK_SECONDS = 1.0
_DONE = (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True)
class Wanted:
    """Which lines. At most one of `rank` and `slot` is given."""

    rank: int | None = None
    slot: int | None = None
    previous: bool = False
    newest: int | None = None  # lines of each pod to begin with

    def takes(self, line: Line) -> bool:
        return self.rank is None or line.text.startswith(f"[rank {self.rank}] ")


def read_logs(place: Place, name: str, wanted: Wanted) -> Iterator[Line]:
    """The lines that are there now. Raises Missing when no pod has a log of that kind."""
    run = find_run(place, name)
    pods = _pods(place, run, wanted)
    tails = Tails(place.api, place.namespace, wanted.newest, wanted.previous)
    lines = tails.read(pods)
    _tell_without(name, pods, tails)
    taken = [line for line in lines if wanted.takes(line)]
    if lines and not taken:
        say(_no_line(status_of(run), wanted))
    yield from taken


def follow_logs(place: Place, name: str, wanted: Wanted) -> Iterator[Line]:
    """The lines as they come, also of pods that come later, until the run is over or gone."""
    run = find_run(place, name)
    uid = run["metadata"]["uid"]
    tails = Tails(place.api, place.namespace, wanted.newest, wanted.previous)
    told = ""
    while True:
        try:
            now = place.api.get(runs_path(place.namespace, name))
            is_there = now is not None and now["metadata"]["uid"] == uid
            pods = _pods_now(place, run, wanted)
            lines = tails.read(pods)
        except Unavailable as error:
            if not told:
                say(told := f"the cluster does not answer; trying again: {error}")
            place.sleep(LOOK_SECONDS)
            continue
        told = ""
        yield from (line for line in lines if wanted.takes(line))
        is_over = not is_there or bool(outcome_of(status_of(now or {})))
        if is_over and all(pod.phase in _DONE for pod in pods):
            return
        place.sleep(LOOK_SECONDS)


def shown_line(line: Line, with_pod: bool) -> str:
    return f"{line.pod} | {line.text}" if with_pod else line.text


def line_json(line: Line) -> dict[str, Any]:
    time = datetime.fromtimestamp(line.nanos // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return {
        "schemaVersion": SCHEMA_VERSION,
        "time": f"{time}.{line.nanos % 10**9:09d}Z",
        "pod": line.pod,
        "slot": line.slot,
        "incarnation": line.incarnation,
        "node": line.node,
        "text": line.text,
    }


def _pods(place: Place, run: dict[str, Any], wanted: Wanted) -> list[Pod]:
    """The pods to read now, at least one. Raises Missing."""
    name = run["metadata"]["name"]
    pods = _pods_now(place, run, wanted)
    if pods:
        return pods
    every = _pods_now(place, run, Wanted())
    if not every:
        raise Missing(
            f"run {name}: has no pods in {place.where}\n  hint: `trainingrun describe {name}` says what it waits for"
        )
    slots = sorted({pod.slot for pod in every})
    raise Missing(
        f"--slot {wanted.slot}: run {name} has no pod in this seat\n"
        f"  hint: its seats are {', '.join(map(str, slots[:16]))}{', …' if len(slots) > 16 else ''}"
    )


def _pods_now(place: Place, run: dict[str, Any], wanted: Wanted) -> list[Pod]:
    uid = run["metadata"]["uid"]
    found = place.api.list(core_path(PODS, place.namespace), selector(RUN_UID=uid))
    pods = pods_of(run, found, place.now())
    return [pod for pod in pods if wanted.slot is None or pod.slot == wanted.slot]


def _tell_without(name: str, pods: Sequence[Pod], tails: Tails) -> None:
    """One line for each pod without a log; an error when none has one."""
    for pod, why in sorted(tails.without.items()):
        say(f"{pod}: no log: {one_line(why)}")
    if pods and len(tails.without) == len(pods):
        raise Missing(
            f"run {name}: none of its pods has such a log\n"
            f"  hint: `trainingrun describe {name}` says how its pods are"
        )


def _no_line(status: Any, wanted: Wanted) -> str:
    axes = (status.get("plan") or {}).get("axes") or {}
    world = prod(axes.get(axis, 1) for axis in ("data", "tensor", "pipeline")) if axes else 0
    ranks = f"; its ranks are 0 to {world - 1}" if world else ""
    return f"no line of rank {wanted.rank} is there{ranks}"


def check(rank: int | None, slot: int | None, follow: bool, previous: bool) -> None:
    """Raises NotAccepted for options that exclude each other."""
    if rank is not None and slot is not None:
        raise NotAccepted("--rank and --slot: give one of them\n  hint: a rank's lines are found in any seat")
    if follow and previous:
        raise NotAccepted(
            "--follow and --previous: the log of a container that ended does not grow\n  hint: leave one out"
        )
