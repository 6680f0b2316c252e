"""The watch against an API server in memory: what is news, what it survives, and that a silent one is found out."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import pytest
from tests.operator.fake_api import Answered, FakeApiServer
from tests.operator.kube_builders import RUN, SETTINGS, SPACE, a_node_object, a_pod_object, a_run_object

from trainingrun.cluster.kubernetes.adapter import KubePort
from trainingrun.cluster.kubernetes.api import Api
from trainingrun.cluster.kubernetes.freshness import Freshness, Watched
from trainingrun.cluster.kubernetes.health import Health
from trainingrun.cluster.kubernetes.news import News
from trainingrun.cluster.kubernetes.watch import Backoffs, Watch

SOON = 10.0  # seconds; a busy machine is slow


class World:
    """A watch on a server, and what it says."""

    def __init__(self, server: FakeApiServer, namespaces: tuple[str, ...] = (SPACE,)) -> None:
        self.server = server
        self.news = News()
        self.freshness = Freshness()
        self.watch = Watch(Api.at(server.url, 2.0), self.news, self.freshness, namespaces, 70.0, 0.1)

    def start(self) -> World:
        self.watch.start()
        eventually(lambda: all(self.knows(which) for which in Watched))
        while self.news.wait(0.3) != set():
            pass
        return self

    def knows(self, which: Watched) -> bool:
        return bool(self.freshness._resources[which].heard)

    def hears(self) -> Collection[str] | None:
        return self.news.wait(SOON)

    def hears_nothing(self) -> bool:
        return self.news.wait(0.5) == set()

    def run_with_pod(self) -> World:
        self.server.put("trainingruns", a_run_object())
        self.server.put("pods", a_pod_object().running().item)
        self.server.put("nodes", a_node_object())
        return self


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer() as server:
        yield server


@pytest.fixture
def world(server: FakeApiServer) -> Iterator[World]:
    world = World(server).run_with_pod().start()
    yield world
    world.watch.stop()


def test_a_pod_that_changes_is_news_of_its_run(world: World) -> None:
    world.server.put("pods", a_pod_object().running().deleting().item)
    assert world.hears() == {RUN.key}


def test_a_pod_that_goes_is_news_of_its_run(world: World) -> None:
    world.server.remove("pods", SPACE, "demo-0-0")
    assert world.hears() == {RUN.key}


def test_a_new_run_is_news_but_a_new_status_is_not(world: World) -> None:
    world.server.put("trainingruns", a_run_object(status={"progress": {"step": 1}}))
    assert world.hears_nothing()
    world.server.put("trainingruns", a_run_object(spec={"task": "sft"}))
    assert world.hears() == {RUN.key}


def test_a_node_that_is_lost_may_concern_every_run_but_a_heartbeat_concerns_none(world: World) -> None:
    beat = a_node_object()
    beat["status"]["images"] = [{"names": ["x"]}]
    world.server.put("nodes", beat)
    assert world.hears_nothing()
    world.server.put("nodes", a_node_object(ready="Unknown"))
    assert world.hears() is None
    assert world.news.take_nodes_changed()
    assert not world.news.take_nodes_changed()


def test_pods_of_nobodys_run_and_other_namespaces_are_not_heard_of(world: World) -> None:
    world.server.put("pods", {"metadata": {"name": "web", "namespace": SPACE}})
    elsewhere = a_pod_object().running().item
    elsewhere["metadata"].update(namespace="team-b", uid="uid-elsewhere")
    world.server.put("pods", elsewhere)
    assert world.hears_nothing()


def test_without_namespaces_the_whole_cluster_is_heard(server: FakeApiServer) -> None:
    world = World(server, ()).run_with_pod().start()
    elsewhere = a_pod_object().running().item
    elsewhere["metadata"].update(namespace="team-b", uid="uid-elsewhere")
    server.put("pods", elsewhere)
    assert world.hears() == {"team-b/demo"}
    world.watch.stop()


def test_nothing_is_written_by_the_watch(world: World) -> None:
    assert {method for method, _ in world.server.requests} == {"GET"}


@pytest.mark.parametrize("code", [410, 500])
def test_an_error_in_the_stream_is_survived(world: World, code: int) -> None:
    """410: the version is too old. 500: kopf ends altogether, and is started anew."""
    with world.server.changed:
        world.server.stream_error = code
        world.server.changed.notify_all()
    starts = 1 if code == 410 else 2
    eventually(lambda: world.server.stream_error == 0 and world.watch.starts == starts)
    world.server.put("pods", a_pod_object(1).running().item)
    eventually(lambda: "uid-1-0" in world.freshness._resources[Watched.PODS].heard)
    assert world.watch.starts == starts


def test_an_api_server_that_was_away_is_heard_again(world: World) -> None:
    world.server.away = True
    time.sleep(1.5)
    world.server.away = False
    world.server.put("pods", a_pod_object(1).running().item)
    eventually(lambda: "uid-1-0" in world.freshness._resources[Watched.PODS].heard)


def test_a_server_that_answers_with_errors_is_asked_ever_more_slowly_but_for_ever() -> None:
    delays = iter(Backoffs())
    first = [next(delays) for _ in range(20)]
    assert first == sorted(first)
    assert (first[0], first[-1]) == (1.0, 30.0)
    assert not hasattr(Backoffs(), "__len__")


def test_a_watch_stops_within_seconds(server: FakeApiServer) -> None:
    world = World(server).run_with_pod().start()
    began = time.monotonic()
    world.watch.stop()
    assert time.monotonic() - began < 4.0


def test_a_silent_watch_makes_the_program_not_ready_then_not_healthy_then_well_again(world: World) -> None:
    settings = replace(SETTINGS, watch_compare_seconds=0.1, watch_stale_seconds=1.0, watch_dead_seconds=1.0)
    port = KubePort(Api.at(world.server.url, 2.0), settings, world.news, world.freshness)
    health = Health(port, world.freshness, settings)
    health.started.set()
    port.wait_for_change(0.2)
    assert (health.not_ready(), health.not_healthy()) == ("", "")

    world.server.deaf_watches = True
    world.server.put("nodes", a_node_object(ready="Unknown"))
    reasons: list[str] = []

    def look(why: Callable[[], str]) -> bool:
        port.wait_for_change(0.1)
        reasons.append(why())
        return bool(reasons[-1])

    eventually(lambda: look(health.not_ready))
    assert reasons[-1].startswith("watch of nodes is 1 s behind: no event of node1")
    assert health.not_healthy() == ""
    assert not port.nodes()[0].ready  # what is read is true all the while
    eventually(lambda: look(health.not_healthy))

    world.server.deaf_watches = False
    eventually(lambda: not look(health.not_ready))
    assert health.not_healthy() == ""


def test_a_refused_watch_is_found_out_too(server: FakeApiServer) -> None:
    server.refusals["GET", "pods"] = Answered(403, "pods is forbidden")
    world = World(server).run_with_pod()
    world.watch.start()
    eventually(lambda: world.knows(Watched.NODES))
    assert not world.knows(Watched.PODS)
    del server.refusals["GET", "pods"]
    eventually(lambda: world.knows(Watched.PODS))
    world.watch.stop()
