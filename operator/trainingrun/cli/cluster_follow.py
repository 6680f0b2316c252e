"""The logs of several pods as one stream in the order of time. Reads by asking again, each line once.

An API server sends the lines from a second on; those of that second that were shown already are left out. A container
that began anew between two looks is read to its end first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlencode

from trainingrun.api.conditions import timestamp
from trainingrun.cli.cluster_access import Reader
from trainingrun.cli.cluster_times import nanos_of
from trainingrun.cluster.kubernetes.objects import PODS, core_path
from trainingrun.cluster.kubernetes.pods import CONTAINER
from trainingrun.ports import Pod, Refused, Unavailable

_AT_ONCE = 8  # logs that are asked for in parallel
_NANOS = 10**9


@dataclass(frozen=True)
class Line:
    nanos: int  # since 1970
    pod: str
    slot: int
    incarnation: int
    node: str
    text: str


class Tail:
    """The log of one pod, from where it was last read."""

    def __init__(self, api: Reader, namespace: str, newest: int | None, previous: bool) -> None:
        """`newest`: how many lines to begin with, None for all. `previous`: of the container before this one."""
        self._api = api
        self._namespace = namespace
        self._newest = newest
        self._previous = previous
        self._restarts: int | None = None
        self._since = 0  # nanoseconds; a whole second, for the API server knows no finer ones
        self._shown: Counter[tuple[int, str]] = Counter()  # lines of that second and later

    def read(self, pod: Pod) -> list[Line]:
        """What is new in the log of the pod, given as it is now.

        Raises Refused when there is no log (yet), and Unavailable when its node does not answer.
        """
        lines: list[Line] = []
        if self._restarts is not None and pod.restarts > self._restarts and not self._previous:
            with suppress(Refused):  # the node has it no more
                lines = self._read(pod, previous=True)
        self._restarts = pod.restarts
        try:
            return lines + self._read(pod, self._previous)
        except (Refused, Unavailable):
            if lines:
                return lines  # they are told once, so they must not get lost
            raise

    def _read(self, pod: Pod, previous: bool) -> list[Line]:
        query = {"container": CONTAINER, "timestamps": "true"}
        if previous:
            query["previous"] = "true"
        if self._since:
            query["sinceTime"] = timestamp(self._since // _NANOS)
        elif self._newest is not None:
            query["tailLines"] = str(self._newest)
        path = f"{core_path(PODS, self._namespace, pod.name)}/log?{urlencode(query)}"
        fresh = self._fresh(self._api.text(path))
        return [Line(nanos, pod.name, pod.slot, pod.incarnation, pod.node, text) for nanos, text in fresh]

    def _fresh(self, text: str) -> list[tuple[int, str]]:
        there: list[tuple[int, str]] = []
        for raw in text.split("\n"):
            time, _, words = raw.partition(" ")
            nanos = nanos_of(time)
            if nanos is not None and nanos >= self._since:
                there.append((nanos, words.rstrip("\r")))
        met: Counter[tuple[int, str]] = Counter()
        fresh = []
        for line in there:
            met[line] += 1
            if met[line] > self._shown[line]:
                fresh.append(line)
        newest = max((nanos for nanos, _ in there), default=0)
        self._since = max(self._since, newest // _NANOS * _NANOS)
        self._shown = Counter({line: n for line, n in (self._shown | met).items() if line[0] >= self._since})
        return fresh


class Tails:
    """The logs of those pods that are there at each look."""

    def __init__(self, api: Reader, namespace: str, newest: int | None, previous: bool) -> None:
        self._api = api
        self._namespace = namespace
        self._newest = newest
        self._previous = previous
        self._tails: dict[tuple[str, str], Tail] = {}
        self.without: dict[str, str] = {}  # pod that has no log -> why

    def read(self, pods: Sequence[Pod]) -> list[Line]:
        """What is new in them all, in the order of time. What cannot be read is in `without`."""
        for pod in pods:
            if (pod.name, pod.uid) not in self._tails:
                tail = Tail(self._api, self._namespace, self._newest, self._previous)
                self._tails[pod.name, pod.uid] = tail
        self._newest = None  # a pod that appears later is read from its start
        self.without = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = list(pool.map(self._read_one, pods))
        return sorted((line for lines in found for line in lines), key=lambda line: line.nanos)

    def _read_one(self, pod: Pod) -> list[Line]:
        try:
            return self._tails[pod.name, pod.uid].read(pod)
        except Refused as error:
            if error.reason == "Forbidden":
                raise
            self.without[pod.name] = error.message
        except Unavailable as error:  # its node is away; the others are not
            self.without[pod.name] = str(error)
        return []
