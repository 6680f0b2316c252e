"""What the adapter makes of pod objects, as a real cluster shows them."""

from __future__ import annotations

import pytest
from tests.operator.kube_builders import NOW, RUN, PodBuilder, a_pod_object, said

from trainingrun.cluster.kubernetes.objects import owner_reference
from trainingrun.cluster.kubernetes.pods import HISTORY_SECONDS, translate
from trainingrun.control.failures import PREEMPTED
from trainingrun.ports import Pod, PodPhase

NODES = {"node1": True, "node2": False}


def read(builder: PodBuilder, nodes: dict[str, bool] | None = None) -> Pod:
    pod = translate(builder.item, RUN, NODES if nodes is None else nodes, NOW)
    assert pod is not None
    return pod


def test_a_running_pod_is_described_by_its_labels_and_status() -> None:
    pod = read(a_pod_object(slot=3, incarnation=2).running())
    assert (pod.name, pod.slot, pod.incarnation, pod.revision) == ("demo-3-2", 3, 2, "demo-r1")
    assert (pod.phase, pod.ready, pod.node, pod.reason) == (PodPhase.RUNNING, True, "node1", "")
    assert (pod.run_uid, pod.created_at, pod.termination) == (RUN.uid, NOW - 300, None)


def test_a_pod_on_a_node_that_is_not_ready_is_lost() -> None:
    pod = read(a_pod_object().running("node2"))
    assert (pod.reason, pod.message) == ("NodeLost", "node node2 is not ready")
    assert pod.phase is PodPhase.RUNNING


def test_a_pod_on_a_node_that_is_gone_is_lost() -> None:
    assert read(a_pod_object().running("node9")).message == "node node9 is gone"


def test_no_pod_is_lost_while_no_node_is_known_at_all() -> None:
    assert read(a_pod_object().running("node9"), nodes={}).reason == ""


def test_a_terminating_pod_on_a_lost_node_is_lost_whatever_the_taint_manager_says() -> None:
    pod = (
        a_pod_object()
        .running("node2")
        .condition("DisruptionTarget", "True", "DeletionByTaintManager", "taint")
    )
    assert read(pod.deleting()).reason == "NodeLost"
    assert read(pod).terminating


def test_a_pod_that_is_over_is_not_lost_with_its_node() -> None:
    pod = a_pod_object().running("node2").ended(0, "Completed", said(0, "Done")).phase("Succeeded")
    assert (read(pod).phase, read(pod).reason) == (PodPhase.SUCCEEDED, "Done")


def test_a_pod_that_fits_nowhere_says_what_the_scheduler_says() -> None:
    message = 'persistentvolumeclaim "data" not found'
    pod = read(a_pod_object().condition("PodScheduled", "False", "Unschedulable", message))
    assert (pod.phase, pod.node, pod.reason, pod.message) == (PodPhase.PENDING, "", "Unschedulable", message)


@pytest.mark.parametrize(
    "reason",
    [
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
    ],
)
def test_a_container_that_cannot_start_says_why(reason: str) -> None:
    pod = read(a_pod_object().waiting(reason, "Back-off pulling image"))
    assert (pod.phase, pod.reason, pod.message) == (PodPhase.PENDING, reason, "Back-off pulling image")


def test_a_container_that_is_being_created_is_no_trouble_until_there_is_a_message() -> None:
    assert read(a_pod_object().waiting("ContainerCreating")).reason == ""
    assert read(a_pod_object().waiting("ContainerCreating", "no such volume")).reason == "ContainerCreating"


def test_a_crash_loop_counts_from_the_end_of_the_container() -> None:
    pod = read(
        a_pod_object().running().waiting("CrashLoopBackOff", "back-off 10s").before(1, message="x", since=7.0)
    )
    assert (pod.reason, pod.crash_looping_seconds, pod.restarts) == ("CrashLoopBackOff", 7.0, 1)
    assert pod.message == "back-off 10s; it ended with exit code 1 (Error)"


def test_a_crash_loop_for_memory_is_known_as_such() -> None:
    pod = read(a_pod_object().waiting("CrashLoopBackOff", "back-off").before(137, "OOMKilled"))
    assert pod.reason == "CrashLoopBackOff"
    assert "OOMKilled" in pod.message
    assert pod.termination is not None
    assert (pod.termination.exit_code, pod.termination.reason) == (137, "OOMKilled")


def test_a_container_that_was_killed_for_memory_and_runs_again_is_remembered_for_a_while() -> None:
    def restarted(since: float) -> Pod:
        return read(a_pod_object().running().before(137, "OOMKilled", since=since))

    assert restarted(20.0).reason == "OOMKilled"
    assert "OOMKilled" in restarted(20.0).message
    assert restarted(HISTORY_SECONDS + 1).reason == ""
    assert restarted(HISTORY_SECONDS + 1).termination is None


def test_a_run_that_is_done_is_done_though_one_of_its_processes_was_killed_for_memory_on_the_way() -> None:
    pod = read(a_pod_object().running().ended(0, "OOMKilled", said(0, "Done", step=600)).phase("Succeeded"))
    assert (pod.phase, pod.reason) == (PodPhase.SUCCEEDED, "Done")
    assert pod.termination is not None
    assert (pod.termination.exit_code, pod.termination.step) == (0, 600)


@pytest.mark.parametrize("reason", ["Evicted", "Preempting", "Terminated"])
def test_a_pod_that_its_kubelet_ended_says_so(reason: str) -> None:
    pod = read(
        a_pod_object().running().ended(137).phase("Failed", reason, "The node was low on resource: memory.")
    )
    assert (pod.phase, pod.reason) == (PodPhase.FAILED, reason)
    assert pod.reason in PREEMPTED


@pytest.mark.parametrize(
    "reason",
    ["PreemptionByScheduler", "DeletionByTaintManager", "EvictionByEvictionAPI", "TerminationByKubelet"],
)
def test_a_pod_that_is_taken_away_says_by_whom(reason: str) -> None:
    pod = a_pod_object().running().condition("DisruptionTarget", "True", reason, "because").deleting()
    assert (read(pod).reason, read(pod).message) == (reason, "because")
    assert reason in PREEMPTED


def test_a_disruption_that_did_not_happen_is_forgotten() -> None:
    pod = (
        a_pod_object().running().condition("DisruptionTarget", "True", "PreemptionByScheduler", since=3600.0)
    )
    assert read(pod).reason == ""


def test_the_last_words_of_an_agent_are_read() -> None:
    words = said(0, "Done", "the run is complete", epoch=3, step=600, manifest="step-600")
    pod = read(a_pod_object().running().ended(0, "Completed", words).phase("Succeeded"))
    end = pod.termination
    assert end is not None
    assert (pod.phase, end.reason, end.step, end.manifest) == (PodPhase.SUCCEEDED, "Done", 600, "step-600")


@pytest.mark.parametrize("code", [64, 66, 69, 75])
def test_an_end_that_must_not_be_restarted_counts_with_its_true_code(code: int) -> None:
    words = said(code, "BadConfiguration", "data.uri: no such file")
    pod = read(a_pod_object().running().ended(0, "Completed", words).phase("Succeeded"))
    assert pod.phase is PodPhase.FAILED
    assert pod.termination is not None
    assert pod.termination.exit_code == code
    assert (pod.reason, pod.message) == ("BadConfiguration", "data.uri: no such file")


def test_the_kernels_exit_code_counts_over_what_was_said_before() -> None:
    end = read(a_pod_object().running().before(137, "Error", said(0, "Done"))).termination
    assert end is not None
    assert (end.exit_code, end.reason) == (137, "Done")


@pytest.mark.parametrize(
    ("code", "reason", "words"), [(137, "Killed", "Error"), (1, "Error", "No module named trainer")]
)
def test_the_end_of_the_log_tells_why_a_container_gave_up_and_not_why_it_was_killed(
    code: int, reason: str, words: str
) -> None:
    end = read(a_pod_object().running().before(code, "Error", "No module named trainer")).termination
    assert end is not None
    assert (end.exit_code, end.reason, end.message) == (code, reason, words)


def test_a_container_that_the_kubelet_lost_says_so() -> None:
    end = read(
        a_pod_object().running().before(137, "ContainerStatusUnknown", "could not be located")
    ).termination
    assert end is not None
    assert (end.reason, end.message) == ("ContainerStatusUnknown", "could not be located")


def test_a_foreign_pod_with_one_of_our_names_is_shown_with_the_seat_that_it_blocks() -> None:
    pod = read(a_pod_object(slot=1, incarnation=4).foreign().running())
    assert (pod.run_uid, pod.slot, pod.incarnation) == ("", 1, 4)


def test_a_pod_of_an_earlier_run_of_the_same_name_is_foreign() -> None:
    builder = a_pod_object().running()
    builder.item["metadata"]["ownerReferences"] = [{**owner_reference(RUN), "uid": "uid-before"}]
    assert read(builder).run_uid == "uid-before"


def test_a_copy_of_a_pod_under_another_name_is_not_ours() -> None:
    builder = a_pod_object().running()
    builder.item["metadata"].update(name="demo-debug", ownerReferences=[])
    assert translate(builder.item, RUN, NODES, NOW) is None
