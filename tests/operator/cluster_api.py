"""An API server in memory for tests of the verbs against a cluster, and builders of what is stored there.

`FakeApi` answers what cluster.kubernetes.api.Api would, refuses what it is told to refuse, and writes down what it
was asked for as RBAC has it. Its logs are the kubelet's: whole seconds for sinceTime, times of nine digits.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.operator.control_builders import a_revision, a_spec, an_epoch
from tests.operator.fake_port import RUN, UID
from tests.operator.status_builders import NOW, a_status

from trainingrun.api.conditions import timestamp
from trainingrun.api.constants import API_VERSION, KIND, Label
from trainingrun.cli.cluster_access import Cluster, Surroundings
from trainingrun.cluster.kubernetes import records
from trainingrun.cluster.kubernetes.objects import RunRef, core_path, owner_reference, records_path, runs_path
from trainingrun.ports import Refused, Unavailable
from trainingrun.protocol.records import Epoch, Revision

SPACE = "team-a"
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<space>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)


@dataclass
class FakeApi:
    at: float = NOW
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)  # by path
    logs: dict[tuple[str, bool], list[tuple[float, str]]] = field(default_factory=dict)  # (pod, previous)
    forbidden: set[str] = field(default_factory=set)  # resources
    lost: set[str] = field(default_factory=set)  # pods whose node does not answer
    away: int = 0  # so many calls are not answered
    unknown_kind: bool = False
    asked: set[tuple[str, str]] = field(default_factory=set)  # (verb, resource)

    def get(self, path: str) -> dict[str, Any] | None:
        self._ask("get", path)
        return copy.deepcopy(self.objects.get(path))

    def list(self, path: str, label_selector: str = "") -> list[dict[str, Any]]:
        self._ask("list", path)
        wanted = [part.split("=") for part in label_selector.split(",") if part]
        plural = path.rsplit("/", 1)[1]
        found = []
        for key, item in self.objects.items():
            folder = key.rsplit("/", 1)[0]
            labels = item["metadata"].get("labels") or {}
            is_of_all = "/namespaces/" not in path and folder.endswith(f"/{plural}")
            if (folder == path or is_of_all) and all(labels.get(name) == value for name, value in wanted):
                found.append(copy.deepcopy(item))
        return found

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._ask("patch", path)
        assert path.endswith("/scale")
        run = self.objects[path.removesuffix("/scale")]
        run["spec"]["scale"]["maxNodes"] = body["spec"]["replicas"]
        return copy.deepcopy(run)

    def text(self, path: str) -> str:
        self._ask("get", urlsplit(path).path)
        query = {key: values[0] for key, values in parse_qs(urlsplit(path).query).items()}
        assert (query["container"], query["timestamps"]) == ("trainer", "true")
        pod = urlsplit(path).path.split("/")[-2]
        lines = self.logs.get((pod, query.get("previous") == "true"))
        if pod in self.lost:
            raise Unavailable(f"the API server answered 500: dial {pod}: no route to host")
        if lines is None:
            raise Refused("BadRequest", f'container "trainer" in pod "{pod}" is waiting to start')
        since = datetime.fromisoformat(query["sinceTime"]).timestamp() if "sinceTime" in query else 0.0
        shown = [line for line in lines if line[0] >= since]
        shown = shown[-int(query["tailLines"]) :] if "tailLines" in query else shown
        return "".join(f"{_nano_time(at)} {text}\n" for at, text in shown)

    def _ask(self, verb: str, path: str) -> None:
        found = _PATH.fullmatch(path)
        assert found, path
        if self.away:
            self.away -= 1
            raise Unavailable(f"{verb} {path}: no answer")
        resource = ".".join(part for part in (found["plural"], found["group"]) if part)
        resource += f"/{found['sub']}" if found["sub"] else ""
        self.asked.add((verb, resource))
        if found["plural"] == "trainingruns" and self.unknown_kind and not found["name"]:
            raise Refused("NotFound", "the server could not find the requested resource")
        if resource in self.forbidden:
            raise Refused("Forbidden", f'{resource} is forbidden: User "ann" cannot {verb} it')

    # what is stored

    def add(self, path: str, item: dict[str, Any]) -> dict[str, Any]:
        self.objects[path] = item
        return item

    def add_run(self, name: str = RUN, space: str = SPACE, uid: str = UID, **status: Any) -> dict[str, Any]:
        """A run that trains; `status` as in a_status."""
        item = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": name,
                "namespace": space,
                "uid": uid,
                "generation": 1,
                "creationTimestamp": timestamp(NOW - 1200),
            },
            "spec": a_spec(minNodes=1, maxNodes=2),
            "status": a_status(**status),
        }
        item["spec"]["checkpoint"]["location"]["uri"] = "pvc://claim/demo"
        return self.add(runs_path(space, name), item)

    def add_pod(self, slot: int, incarnation: int = 0, *, owner: str = UID, **changes: Any) -> dict[str, Any]:
        """`changes`: phase, restarts, node, waiting (reason, message), deleted."""
        name = f"{RUN}-{slot}-{incarnation}"
        waiting = changes.get("waiting")
        state: dict[str, Any] = {"running": {}} if waiting is None else {"waiting": waiting}
        phase = changes.get("phase", "Running")
        ready = "True" if waiting is None and phase == "Running" else "False"
        item = {
            "metadata": {
                "name": name,
                "namespace": SPACE,
                "uid": f"uid-{name}",
                "creationTimestamp": timestamp(NOW - 900),
                "labels": {
                    Label.RUN_UID.value: UID,
                    Label.SLOT.value: str(slot),
                    Label.INCARNATION.value: str(incarnation),
                },
                "ownerReferences": [owner_reference(RunRef(SPACE, RUN, owner))],
                **({"deletionTimestamp": timestamp(NOW)} if changes.get("deleted") else {}),
            },
            "spec": {"nodeName": changes.get("node", f"node-{slot}")},
            "status": {
                "phase": phase,
                "conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [
                    {"name": "trainer", "restartCount": changes.get("restarts", 0), "state": state}
                ],
            },
        }
        return self.add(core_path("pods", SPACE, name), item)

    def add_node(self, name: str, ready: bool = True) -> None:
        conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
        self.add(
            core_path("nodes", "", name), {"metadata": {"name": name}, "status": {"conditions": conditions}}
        )

    def add_record(self, record: Epoch | Revision, owner: str = UID) -> dict[str, Any]:
        item = records.to_object(record, RunRef(SPACE, RUN, owner))
        return self.add(records_path(SPACE, record.name), item)

    def add_event(self, reason: str, message: str, ago: float, **changes: Any) -> None:
        """`changes`: pod, kind, uid, type, count, series."""
        pod = changes.get("pod", "")
        about = {"kind": "Pod", "name": pod} if pod else {"kind": KIND, "name": RUN, "uid": UID}
        about |= {key: changes[key] for key in ("kind", "uid") if key in changes}
        name = f"event-{len(self.objects)}"
        item = {
            "metadata": {"name": name, "namespace": SPACE},
            "involvedObject": about,
            "type": changes.get("type", "Normal"),
            "reason": reason,
            "message": message,
            "count": changes.get("count"),
            "series": changes.get("series"),
            "eventTime": timestamp(NOW - ago).replace("Z", ".000000Z"),
            "lastTimestamp": None,
        }
        self.add(core_path("events", SPACE, name), item)

    def log(self, pod: str, *lines: tuple[float, str], previous: bool = False) -> None:
        """Lines of (seconds after NOW, text) at the end of a pod's log."""
        self.logs.setdefault((pod, previous), []).extend((NOW + at, text) for at, text in lines)


def an_epoch_record(number: int, **fields: Any) -> Epoch:
    return an_epoch(number, **{"at": NOW - 1000 + 400 * (number - 1), **fields})


def a_plan(largest: int = 2) -> Revision:
    return a_revision(a_spec(), largest)


def surroundings(api: FakeApi, story: Any = None) -> Surroundings:
    """Time passes only by sleeping; `story(seconds slept so far)` is called then and may change the world."""

    def sleep(seconds: float) -> None:
        api.at += seconds
        if story is not None:
            story(api.at - NOW)

    cluster = Cluster(api, "kind-test", SPACE)
    return Surroundings(lambda _: cluster, lambda: api.at, sleep)


def _nano_time(at: float) -> str:
    return timestamp(at)[:-1] + f".{round(at * 1000) % 1000:03d}000000Z"
