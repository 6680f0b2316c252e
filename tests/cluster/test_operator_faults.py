"""The operator and the API server go away, or are there twice, on a real cluster: training does not depend on them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster.disturbances import (
    KUBERNETES_SECONDS,
    counted,
    frozen,
    goes_on,
    grows_to,
    ranks_of,
    steps_of,
    steps_without_api,
    still,
    tell,
)
from tests.cluster.installation import CONTROLLER, MEMBERSHIP, is_ready
from tests.scenarios.cluster_line import ClusterLine
from tests.scenarios.line import Moment
from tests.scenarios.story import FP64_BOUND, Told

from trainingrun.cluster.local import processes
from trainingrun.protocol.messages import RunView
from trainingrun.protocol.records import Trigger

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

AWAY_SECONDS = 60.0  # without an API server
RECOVERY_SECONDS = 10.0  # of these, with a dead rank
PAUSED_SECONDS = 30.0


def test_two_controllers_at_once_and_one_that_dies_anywhere_in_a_recovery_do_nothing_twice(
    calm: Told, folder: Path
) -> None:
    def story(line: ClusterLine) -> None:
        with still(line):
            line.operator.scale(CONTROLLER, 2)
            line.wait_for(lambda _: ready_pods(line, CONTROLLER) == 2, "two controllers")
        asked = time.time()
        line.delete_pods(1)
        goes_on(line, 1)
        grows_to(line, 2, lambda: counted(line, 1, asked))
        with still(line):
            line.operator.scale(CONTROLLER, 1)
            line.wait_for(lambda _: len(line.operator.pods(CONTROLLER)) == 1, "one controller")

        for number, it_is_time in enumerate((at_once, with_a_new_epoch, with_a_new_pod)):
            slot, before = number % 2, line.moment()
            line.delete_pods(slot)
            line.wait_for(it_is_time(before, slot), it_is_time.__name__)
            line.operator.signal(CONTROLLER, signal.SIGKILL)
            goes_on(line, after_epoch=before.epoch)

            def meanwhile(disruptions: int = 2 + number) -> None:
                renew_controller(line)
                counted(line, disruptions, time.time())

            grows_to(line, 2, meanwhile)

    after = tell(folder, story)
    assert after.told.sizes == [2, 1, 2, 1, 2, 1, 2, 1, 2]
    assert after.pods == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
    assert after.told.losses.furthest_from(calm.losses) <= FP64_BOUND


def renew_controller(line: ClusterLine) -> None:
    """Another pod, because the kubelet waits ever longer before it starts a killed container again."""
    line.kill_controller()
    line.start_controller()
    line.operator.wait_ready(CONTROLLER)


def at_once(before: Moment, slot: int) -> Callable[[Moment], bool]:
    return lambda now: True


def with_a_new_epoch(before: Moment, slot: int) -> Callable[[Moment], bool]:
    return lambda now: now.epoch > before.epoch


def with_a_new_pod(before: Moment, slot: int) -> Callable[[Moment], bool]:
    newest = max(pod.incarnation for pod in before.pods if pod.slot == slot)
    return lambda now: any(pod.slot == slot and pod.incarnation > newest for pod in now.pods)


def test_the_operator_moves_away_from_a_node_without_power_while_training_goes_on(
    calm: Told, folder: Path
) -> None:
    def story(line: ClusterLine) -> None:
        home = line.operator.node
        assert home not in line.workers
        ranks = ranks_of(line, 0, 1)
        line.cluster.power_off(home)
        trained = line.newest_step()
        line.wait_for(lambda _: line.newest_step() >= trained + 10, "steps without an operator")
        with frozen(ranks):
            for program in (CONTROLLER, MEMBERSHIP):
                line.wait_for(
                    lambda _, program=program: ready_pods(line, program, besides=home),
                    f"{program} on another node",
                    2 * KUBERNETES_SECONDS,
                )
        now = goes_on(line, 2)
        assert now.epoch == 1
        line.wait_for_step(now.step + 5)
        killed = time.time()
        line.kill_rank(slot=1, local_rank=0)
        goes_on(line, 2, after_epoch=1)
        with still(line):
            counted(line, 1, killed)
        line.cluster.power_on(home)

    after = tell(folder, story)
    assert after.told.triggers == [Trigger.STARTED, Trigger.PROCESS_DIED]
    assert after.pods == ["0-0", "1-0"]
    assert after.told.losses.furthest_from(calm.losses) == 0.0


def test_without_an_api_server_training_goes_on_and_a_recovery_waits_for_it(calm: Told, folder: Path) -> None:
    def story(line: ClusterLine) -> None:
        ranks = ranks_of(line, 0, 1)
        began = time.monotonic()
        line.cluster.pause_apiserver()
        try:
            steps_without_api(line)
            with frozen(ranks):
                time.sleep(max(0.0, began + PAUSED_SECONDS - time.monotonic()))
            trained = steps_of(all_there(steps_without_api(line)))
        finally:
            line.cluster.resume_apiserver()
        with still(line):
            line.wait_for(lambda now: now.status["progress"]["step"] >= trained, "news in the status", 30.0)

        began = time.monotonic()
        line.cluster.stop_apiserver()
        try:
            steps_without_api(line)
            with frozen(ranks):
                time.sleep(max(0.0, began + AWAY_SECONDS - RECOVERY_SECONDS - time.monotonic()))
            all_there(steps_without_api(line))
            processes.send(ranks[1], signal.SIGKILL)
            time.sleep(RECOVERY_SECONDS)
            view = all_there(line.view())
            assert view.proposing or view.waiting_for
        finally:
            line.cluster.start_apiserver()
        back = time.time()
        goes_on(line, 2, after_epoch=1)
        with still(line):
            counted(line, 1, back)
        line.cluster.restart_controller_manager()

    after = tell(folder, story)
    assert after.told.triggers == [Trigger.STARTED, Trigger.PROCESS_DIED]
    assert after.pods == ["0-0", "1-0"]
    assert after.told.losses.furthest_from(calm.losses) == 0.0


def all_there(view: RunView | None) -> RunView:
    """Both members are heard, and still in the first epoch."""
    assert view is not None
    assert view.epoch == 1
    assert [member.slot for member in view.members if member.in_epoch and member.silent_seconds < 2.0] == [
        0,
        1,
    ]
    return view


def ready_pods(line: ClusterLine, program: str, besides: str = "") -> int:
    """Of the operator, on another node than `besides`."""
    pods = [pod for pod in line.operator.pods(program) if is_ready(pod)]
    return sum(pod["spec"].get("nodeName") != besides for pod in pods)
