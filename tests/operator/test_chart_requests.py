"""What membership asks of the API server, by running its parts, beside what the chart lets it ask.

The controller's list is in its own code (`permissions.RIGHTS`) and is held against the chart in test_chart_rights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.operator.chart_rendering import NAMESPACE, chart
from tests.operator.fake_api import FakeApiServer
from tests.operator.gate_world import CONTROLLER, FakeServer
from tests.operator.kube_builders import RUN, SETTINGS, a_run_object, epoch_of, revision_of

from trainingrun.cluster.kubernetes.adapter import KubeRecords
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.authority import ensure_authority
from trainingrun.cluster.kubernetes.gate import TokenGate
from trainingrun.protocol.names import TOKEN_AUDIENCE

CA = "trainingrun-membership-ca"
_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<space>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>.+))?$"
)


class Recording:
    """An API client that notes (verb, group, resource, name) of what it is asked; the name only of our own objects."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked: set[tuple[str, str, str, str]] = set()

    def _note(self, verb: str, path: str) -> None:
        match = _PATH.match(path)
        assert match is not None, path
        own = match["space"] == NAMESPACE
        name = (match["name"] or "*") if own else "*"
        self.asked.add((verb, match["group"] or "", match["plural"], name))

    def get(self, path: str) -> Any:
        self._note("get", path)
        return self._inner.get(path)

    def list(self, path: str, label_selector: str = "", **options: Any) -> Any:
        self._note("list", path)
        return self._inner.list(path, label_selector, **options)

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        self._note("create", path)
        return self._inner.create(path, body)

    def apply(self, path: str, body: Mapping[str, Any], manager: str) -> Any:
        """Of an object that is not there yet, the API server wants `create` too, and knows its name."""
        self._note("patch", path)
        self._note("create", path)
        return self._inner.apply(path, body, manager)


def asked_by_the_records() -> set[tuple[str, str, str, str]]:
    with FakeApiServer() as server:
        server.put("trainingruns", a_run_object())
        api = Recording(Api.at(server.url))
        records = KubeRecords(api, SETTINGS)  # type: ignore[arg-type]
        assert records.run_exists(RUN.uid) == RUN.name
        records.saved_checkpoint(RUN.uid)
        records.create(revision_of())
        records.create(epoch_of(1))
        assert len(records.revisions(RUN.uid)) == len(records.revisions(RUN.uid)) == 1
        assert len(records.epochs(RUN.uid)) == len(records.epochs(RUN.uid)) == 1
        return api.asked


def asked_by_gate_and_authority() -> set[tuple[str, str, str, str]]:
    server = FakeServer()
    api = Recording(server)
    gate = TokenGate(api, TOKEN_AUDIENCE, CONTROLLER)
    gate.admit(server.add_worker())
    gate.admit(server.controller_token())
    ensure_authority(api, NAMESPACE, CA, datetime(2026, 5, 1, tzinfo=UTC))
    return api.asked


def test_membership_may_do_what_its_code_asks_and_nothing_else() -> None:
    given = {
        (verb, group, resource, name)
        for _, rule in chart().rules("membership")
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ["*"])
    }
    needed = asked_by_the_records() | asked_by_gate_and_authority()
    # Never asked for by the code: the API server wants it for owner references that block deletion.
    assert given - needed == {("update", "trainingrun.dev", "trainingruns/finalizers", "*")}
    assert needed <= given
