"""A local node as a real process with a fake agent: what a kubelet promises about containers, kept by
processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.operator.local_builders import a_run, a_template, only, settings_for, wait_until

from trainingrun.cluster.local import files, processes
from trainingrun.cluster.local.backoff import Backoff
from trainingrun.cluster.local.cluster import LocalCluster, StateInUse
from trainingrun.cluster.local.settings import LocalSettings
from trainingrun.ports import Pod, PodPhase
from trainingrun.protocol.names import ENV_POD_UID

DONE = {"exitCode": 0, "reason": "Done", "step": 300, "loss": 3.5, "manifest": "step-00000300.e0001"}


class Line:
    """One node and one pod of the run `demo`."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.cluster = LocalCluster(folder / "state", "unused", settings=settings_for(folder, **settings))
        self.memory = Path(self.cluster.settings.memory_folder)
        self.uid = ""
        files.replace(self.cluster.layout.membership, {"host": "127.0.0.1", "port": 1})

    def start(self, *starts: dict[str, Any], node: bool = True, **resources: str) -> None:
        self.uid = a_run(self.cluster.root, starts=list(starts))
        self.cluster.port.create_pod(a_template(self.uid, **resources))
        if node:
            self.cluster.start_node("node-0", {"cpu": "1"})

    @property
    def pod(self) -> Pod:
        return only(self.cluster.port.pods("demo"))

    def until(self, **facts: Any) -> Pod:
        def found() -> Pod | None:
            pod = self.pod
            return pod if all(getattr(pod, name) == value for name, value in facts.items()) else None

        try:
            return wait_until(found, str(facts))
        except AssertionError:
            log = self.cluster.layout.program_log("node-0")
            print(self.pod, log.read_text() if log.exists() else "", sep="\n")
            raise

    def processes(self) -> list[processes.Process]:
        return processes.carrying({ENV_POD_UID: self.pod.uid})

    def log(self) -> str:
        path = self.cluster.layout.pod_logs("demo", "demo-0-1") / "agent.log"
        return path.read_text() if path.exists() else ""

    def until_running(self, start: int = 0) -> Pod:
        """The fake agent has begun its n-th start and handles signals."""
        pod = self.until(ready=True, restarts=start)
        wait_until(lambda: f"start {start} of" in self.log(), f"start {start} in the log")
        return pod


@pytest.fixture
def line(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Line]:
    line = Line(tmp_path, **getattr(request, "param", {}))
    yield line
    line.cluster.teardown()
    assert line.cluster.leaks() == []
    assert list(line.memory.iterdir()) == []


def test_a_pod_waits_for_a_node_and_then_runs_there(line: Line) -> None:
    line.start({"exit": None}, node=False)
    assert (line.pod.phase, line.pod.reason) == (PodPhase.PENDING, "Unschedulable")
    line.cluster.start_node("node-0")
    pod = line.until(phase=PodPhase.RUNNING, ready=True)
    assert (pod.node, pod.restarts) == ("node-0", 0)


def test_a_pod_that_asks_for_a_device_waits_for_a_node_that_has_it(line: Line) -> None:
    line.start({"exit": None}, **{"nvidia.com/gpu": "1"})
    assert (line.pod.phase, line.pod.reason) == (PodPhase.PENDING, "Unschedulable")
    line.cluster.start_node("node-1", {"nvidia.com/gpu": "1"})
    assert line.until(phase=PodPhase.RUNNING).node == "node-1"


def test_a_node_takes_one_pod_and_another_node_the_next(line: Line) -> None:
    line.start({"exit": None})
    line.cluster.port.create_pod(a_template(line.uid, slot=1))
    wait_until(lambda: line.cluster.port.pods("demo")[1].reason == "Unschedulable", "the second pod waits")
    line.cluster.start_node("node-1")
    wait_until(lambda: line.cluster.port.pods("demo")[1].phase is PodPhase.RUNNING, "the second pod runs")
    assert [pod.node for pod in line.cluster.port.pods("demo")] == ["node-0", "node-1"]


def test_exit_code_zero_is_success_and_the_last_words_are_in_the_pod(line: Line) -> None:
    line.start({"exit": 0, "say": DONE})
    pod = line.until(phase=PodPhase.SUCCEEDED)
    assert pod.termination is not None
    assert (pod.termination.step, pod.termination.manifest) == (300, "step-00000300.e0001")
    assert (pod.reason, pod.ready, pod.restarts) == ("Done", False, 0)


@pytest.mark.parametrize("code", [64, 66, 69, 75])
def test_a_container_that_must_not_be_restarted_fails_its_pod(line: Line, code: int) -> None:
    line.start(
        {"exit": code, "say": {"exitCode": code, "reason": "BadConfiguration", "message": "field a: 1"}}
    )
    pod = line.until(phase=PodPhase.FAILED)
    assert (pod.reason, pod.message, pod.restarts) == ("BadConfiguration", "field a: 1", 0)


def test_a_container_that_is_killed_is_restarted_in_place_at_once(line: Line) -> None:
    line.start({"exit": None}, {"exit": 0})
    first = line.until_running()
    line.cluster.kill_agent("demo", 0)
    pod = line.until(phase=PodPhase.SUCCEEDED)
    assert (pod.uid, pod.restarts) == (first.uid, 1)
    assert "start 0" in line.log()
    assert "start 1" in line.log()


def test_what_the_agent_left_running_is_ended_before_it_is_restarted(line: Line) -> None:
    line.start({"exit": None, "children": 2}, {"exit": None})
    line.until_running()
    ranks = wait_until(lambda: len(found := line.cluster.ranks("demo", 0)) == 2 and found, "two ranks run")
    assert sorted(ranks) == [0, 1]
    line.cluster.kill_agent("demo", 0)
    line.until(restarts=1, ready=True)
    assert not any(processes.alive(process) for process in ranks.values())


def test_without_last_words_the_end_of_the_log_and_the_exit_code_are_told(line: Line) -> None:
    line.start({"exit": 1}, {"exit": None})
    pod = line.until(restarts=1)
    assert pod.termination is not None
    assert (pod.termination.exit_code, pod.termination.reason) == (1, "Error")
    assert "start 0 of demo-0-1" in pod.termination.message


@pytest.mark.parametrize("line", [{"backoff_first_seconds": 60.0}], indirect=True)
def test_a_container_that_fails_again_waits_in_a_crash_loop_and_says_how_long(line: Line) -> None:
    line.start({"exit": 1})
    pod = line.until(reason="CrashLoopBackOff")
    assert (pod.phase, pod.ready, pod.restarts) == (PodPhase.RUNNING, False, 2)
    wait_until(lambda: line.pod.crash_looping_seconds > 0.2, "the crash loop grows older")


def test_the_back_off_is_the_kubelets(tmp_path: Path) -> None:
    state = Backoff(LocalSettings())
    waits = []
    for _ in range(8):
        wait, state = state.after(ran_seconds=1.0)
        waits.append(wait)
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]
    assert state.after(ran_seconds=600.0)[0] == 0


def test_a_deleted_pod_is_asked_to_stop_and_then_gone_with_its_memory(line: Line) -> None:
    line.start({"exit": None})
    pod = line.until_running()
    assert list(line.memory.glob("trainingrun-*/demo-0-1")) != []
    line.cluster.port.delete_pod("demo", pod.name, "another uid")
    assert not line.pod.terminating
    line.cluster.port.delete_pod("demo", pod.name, pod.uid)
    wait_until(lambda: not line.cluster.port.pods("demo"), "the pod is gone")
    assert list(line.memory.iterdir()) == []
    line.cluster.port.create_pod(a_template(line.uid, incarnation=2))
    assert line.until(ready=True).incarnation == 2


def test_a_deleted_pod_that_does_not_stop_is_killed_after_the_grace_period(line: Line) -> None:
    line.start({"exit": None, "ignoreTerm": True, "children": 1})
    pod = line.until_running()
    line.cluster.port.delete_pod("demo", pod.name, pod.uid)
    assert line.pod.terminating
    uid = pod.uid
    wait_until(lambda: not line.cluster.port.pods("demo"), "the pod is gone")
    assert processes.carrying({ENV_POD_UID: uid}) == []


def test_a_pod_that_ended_is_removed_when_it_is_deleted(line: Line) -> None:
    line.start({"exit": 0})
    pod = line.until(phase=PodPhase.SUCCEEDED)
    line.cluster.port.delete_pod("demo", pod.name, pod.uid)
    wait_until(lambda: not line.cluster.port.pods("demo"), "the pod is gone")


def test_sigkill_of_a_node_leaves_no_agent_and_no_rank(line: Line) -> None:
    """The bare signal to the one process: the kernel does the rest."""
    line.start({"exit": None, "children": 2})
    line.until(ready=True)
    wait_until(lambda: len(line.processes()) == 3, "an agent and two ranks run")
    node = line.cluster.port.node_store.get("node-0")
    assert node is not None
    uid = line.pod.uid
    os.kill(node.pid, signal.SIGKILL)
    wait_until(lambda: processes.carrying({ENV_POD_UID: uid}) == [], "all of them are gone", 2.0)


@pytest.mark.parametrize("fault", ["kill_agent", "kill_node"])
def test_named_semaphores_of_killed_processes_are_removed(line: Line, fault: str) -> None:
    line.start({"exit": None, "semaphore": True}, {"exit": None})
    line.until_running()
    name = line.log().split("semaphore /", 1)[1].split()[0]
    semaphore = Path("/dev/shm") / f"sem.{name}"
    assert semaphore.exists()
    if fault == "kill_agent":
        line.cluster.kill_agent("demo", 0)
        line.until_running(start=1)
    else:
        line.cluster.kill_node("node-0")
    assert not semaphore.exists()


def test_the_pod_of_a_dead_node_is_lost_and_its_memory_too(line: Line) -> None:
    line.start({"exit": None, "children": 1})
    line.until(ready=True)
    line.cluster.kill_node("node-0")
    pod = line.pod
    assert (pod.phase, pod.reason, pod.node) == (PodPhase.FAILED, "NodeLost", "node-0")
    assert [node.ready for node in line.cluster.port.nodes()] == [False]
    assert list(line.memory.iterdir()) == []
    line.cluster.port.delete_pod("demo", pod.name, pod.uid)
    assert line.cluster.port.pods("demo") == []


def test_a_node_that_comes_back_is_a_new_life_and_takes_the_replacement(line: Line) -> None:
    line.start({"exit": None})
    line.until(ready=True)
    line.cluster.kill_node("node-0")
    line.cluster.start_node("node-0")
    assert line.pod.reason == "NodeLost"
    line.cluster.port.create_pod(a_template(line.uid, incarnation=2))
    wait_until(lambda: line.cluster.port.pods("demo")[1].ready, "the replacement runs")
    assert line.cluster.port.pods("demo")[0].reason == "NodeLost"


def test_a_pod_that_ended_well_before_its_node_died_has_ended_well(line: Line) -> None:
    line.start({"exit": 0, "say": DONE})
    line.until(phase=PodPhase.SUCCEEDED)
    line.cluster.kill_node("node-0")
    assert line.pod.phase is PodPhase.SUCCEEDED


def test_a_node_that_is_shut_down_stops_its_pod_which_stays_as_failed(line: Line) -> None:
    line.start({"exit": None})
    line.until_running()
    line.cluster.stop_node("node-0")
    assert (line.pod.phase, line.pod.reason) == (PodPhase.FAILED, "Terminated")
    assert line.processes() == []


def test_a_second_node_of_the_same_name_is_refused(line: Line, capfd: pytest.CaptureFixture[str]) -> None:
    from trainingrun.cluster.local import nodes
    from trainingrun.cluster.local.node import main

    line.start({"exit": None})
    nodes.LOCK_PATIENCE_SECONDS, patience = 0.1, nodes.LOCK_PATIENCE_SECONDS
    try:
        arguments = ["--state", str(line.cluster.root), "--name", "node-0", "--trainer-python", "python"]
        assert main(arguments) == 1
    finally:
        nodes.LOCK_PATIENCE_SECONDS = patience
    assert "--name node-0: a node of that name runs" in capfd.readouterr().err


def test_a_state_directory_has_one_cluster(line: Line) -> None:
    with pytest.raises(StateInUse, match="is in use"):
        LocalCluster(line.cluster.root, "unused")


def test_a_cluster_whose_process_dies_takes_everything_with_it(tmp_path: Path) -> None:
    """The next cluster over the same state finds the run, a lost pod and no process."""
    settings = settings_for(tmp_path)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        line = Line(tmp_path)
        line.start({"exit": None, "children": 1})
        line.until(ready=True)
        os.write(write, line.pod.uid.encode())
        signal.pause()
    uid = os.read(read, 100).decode()
    assert len(wait_until(lambda: processes.carrying({ENV_POD_UID: uid}), "the pod runs")) >= 1
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_until(lambda: processes.carrying({ENV_POD_UID: uid}) == [], "all of them are gone", 2.0)
    with LocalCluster(tmp_path / "state", "unused", settings=settings) as cluster:
        assert only(cluster.port.pods("demo")).reason == "NodeLost"
    assert cluster.leaks() == []
    assert list(Path(settings.memory_folder).iterdir()) == []
