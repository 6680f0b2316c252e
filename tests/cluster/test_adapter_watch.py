"""The adapter's watch on a real API server, with a proxy before it that stalls, cuts, expires and refuses."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.harness.faultproxy import FaultProxy
from tests.operator.kube_builders import SETTINGS

from trainingrun.api.constants import Label
from trainingrun.cluster.kubernetes.adapter import KubePort
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.freshness import Freshness, Watched
from trainingrun.cluster.kubernetes.health import Health
from trainingrun.cluster.kubernetes.news import News
from trainingrun.cluster.kubernetes.objects import core_path
from trainingrun.cluster.kubernetes.watch import Watch
from trainingrun.ports import Conflict, Unavailable

pytestmark = pytest.mark.cluster

CRD = Path(__file__).parents[2] / "crds" / "trainingruns.trainingrun.dev.yaml"
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingruns.trainingrun.dev"
SOON = 30.0  # seconds
STALE = 3.0
INACTIVITY = 8.0  # in truth longer: an API server gives a quiet watch a sign of life once a minute


def eventually(holds: Callable[[], object], within: float = SOON) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within, "it never came true"
        time.sleep(0.1)
    return time.monotonic() - began


@dataclass
class World:
    """A watch behind the proxy, a port before it and, beside both, somebody who changes pods."""

    direct: Api
    proxy: FaultProxy
    namespace: str
    news: News = field(default_factory=News)
    freshness: Freshness = field(default_factory=Freshness)

    def __post_init__(self) -> None:
        settings = replace(
            SETTINGS,
            watch_namespaces=(self.namespace,),
            watch_compare_seconds=0.5,
            watch_stale_seconds=STALE,
            watch_dead_seconds=STALE,
        )
        api = Api.at(self.proxy.url, 2.0)
        self.watch = Watch(api, self.news, self.freshness, settings.watch_namespaces, INACTIVITY)
        self.port = KubePort(api, settings, self.news, self.freshness)
        self.health = Health(self.port, self.freshness, settings)
        self.health.started.set()

    def start(self) -> World:
        self.watch.start()
        eventually(
            lambda: all(self.freshness._resources[which].heard for which in (Watched.PODS, Watched.NODES))
        )
        self.settle()
        return self

    def settle(self) -> None:
        while self.news.wait(0.5) != set():
            pass

    def create_pod(self) -> None:
        """One that never starts, under a run's labels."""
        container = {
            "name": "x",
            "image": "localhost/none",
            "securityContext": {"allowPrivilegeEscalation": False},
        }
        container["securityContext"]["capabilities"] = {"drop": ["ALL"]}  # type: ignore[index]
        labels = {Label.RUN_NAME.value: "demo", Label.RUN_UID.value: "uid-demo"}
        security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {
            "schedulingGates": [{"name": "trainingrun.dev/test"}],
            "securityContext": security,
            "containers": [container],
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "demo-0-0", "labels": labels},
            "spec": spec,
        }
        self.direct.create(core_path("pods", self.namespace), body)

    def change_pod(self) -> None:
        patch: dict[str, Any] = {"metadata": {"annotations": {"change": secrets.token_hex(4)}}}
        self.direct.patch(core_path("pods", self.namespace, "demo-0-0"), patch)

    def is_heard(self) -> bool:
        """Within a moment, and nothing was heard before."""
        return f"{self.namespace}/demo" in (self.news.wait(1.0) or ())

    def seconds_until_heard(self) -> float:
        self.change_pod()
        return eventually(self.is_heard)


@pytest.fixture(scope="module")
def direct(request: pytest.FixtureRequest) -> Api:
    """Somebody's cluster, or our own."""
    kubeconfig = os.environ.get("TRAININGRUN_TEST_KUBECONFIG")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", kubeconfig or str(request.getfixturevalue("cluster").kubeconfig))
        return Api.connect()


@pytest.fixture(scope="module")
def namespace(direct: Api) -> Iterator[str]:
    name = f"watch-{secrets.token_hex(3)}"
    direct.create("/api/v1/namespaces", {"metadata": {"name": name}})
    if direct.get(CRD_PATH) is None:
        direct.apply(CRD_PATH, yaml.safe_load(CRD.read_text()), "tests")
    eventually(lambda: direct.get(core_path("serviceaccounts", name, "default")))
    yield name
    direct.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def world(direct: Api, namespace: str) -> Iterator[World]:
    there = direct.configuration
    identity = (Path(there.cert_file), Path(there.key_file)) if there.cert_file else None
    with FaultProxy(there.host, Path(there.ssl_ca_cert), identity) as proxy:
        world = World(direct, proxy, namespace)
        with contextlib.suppress(Conflict):
            world.create_pod()
        try:
            yield world.start()
        finally:
            world.watch.stop()


def test_a_change_is_heard_within_a_second(world: World) -> None:
    assert world.seconds_until_heard() < 1.0


def test_a_stalled_watch_is_found_out_and_found_well_again(world: World) -> None:
    world.port.wait_for_change(0.1)
    assert world.health.not_ready() == ""
    world.proxy.stall_watches()
    world.change_pod()

    def looked(why: Callable[[], str]) -> str:
        world.port.wait_for_change(0.5)
        return why()

    assert eventually(lambda: looked(world.health.not_ready)) < STALE + 5
    assert "watch of pods" in world.health.not_ready()
    assert eventually(lambda: looked(world.health.not_healthy)) < STALE + 5
    world.proxy.resume_watches()
    eventually(lambda: not looked(world.health.not_ready))


def test_while_the_watch_is_stalled_lists_take_its_place(world: World) -> None:
    world.proxy.stall_watches()
    world.change_pod()

    def heard() -> bool:
        return world.port.wait_for_change(0.5) is None

    assert eventually(heard) < 5.0


def test_a_watch_that_is_cut_goes_on(world: World) -> None:
    assert world.proxy.cut_watches() == 3
    assert world.seconds_until_heard() < 5.0
    assert world.watch.starts == 1


def test_a_watch_whose_version_is_too_old_goes_on(world: World) -> None:
    assert world.proxy.expire_watches() == 3
    assert world.seconds_until_heard() < 5.0
    assert world.watch.starts == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_answers_watches_with_errors_is_not_given_up(world: World, status: int) -> None:
    world.proxy.answer(status, watch=True)
    world.proxy.cut_watches()
    time.sleep(4.0)
    tried = sum(request.answered == status for request in world.proxy.requests)
    world.proxy.clear()
    assert world.seconds_until_heard() < 10.0
    assert 3 <= tried <= 15  # three watches: again and again, but no flood


def test_a_server_that_answers_nothing_is_unavailable_and_heard_again(world: World) -> None:
    world.proxy.hang()
    world.proxy.cut_watches()
    with pytest.raises(Unavailable):
        world.port.run_keys()
    world.proxy.clear()
    eventually(lambda: world.port.run_keys() is not None)
    assert world.seconds_until_heard() < 20.0
