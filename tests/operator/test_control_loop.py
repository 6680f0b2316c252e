"""The program around reconcile: queue, plans in another process, errors of one run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from tests.operator.control_builders import SPEC, condition, resolve_plainly
from tests.operator.fake_port import RUN, FakeWorld

from trainingrun.control.loop import ControllerSettings, resolve_manifest, run_controller
from trainingrun.control.observed import PlanFailure, PlanPending, PlanResult
from trainingrun.control.planning import PlanBook, answer, process_pool
from trainingrun.control.queue import WorkQueue
from trainingrun.ports import Refused

QUICK = ControllerSettings(
    debounce_seconds=0.0, resync_seconds=0.01, first_backoff_seconds=0.01, plan_poll_seconds=0.01
)


def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1)


def drive(world, until, *, settings=QUICK, plans=None, seconds=20.0, resolve=resolve_plainly):
    """Run the controller until `until(world)` holds."""
    stop = threading.Event()
    deadline = time.monotonic() + seconds

    def wait_for_change(timeout):
        world.at += timeout
        if until(world) or time.monotonic() > deadline:
            stop.set()
        stop.wait(0.002)

    world.wait_for_change = wait_for_change
    run_controller(
        world,
        settings,
        stop,
        plans=plans or PlanBook(executor=threads),
        resolve=resolve,
        clock=lambda: world.at,
    )
    assert until(world), "the controller did not get there"


def test_the_planner_plans_the_example():
    result = answer(SPEC)
    assert isinstance(result, PlanResult)
    assert [rung.nodes for rung in result.rungs] == [1, 2]
    assert result.reason and result.planner_version
    assert [item["rung"]["nodes"] for item in result.plan["rungs"]] == [1, 2]


def test_a_plan_that_fits_nowhere_is_an_answer_with_a_message():
    spec = {**SPEC, "resources": {"perNode": {"cpu": "1", "memory": "64Mi"}, "processesPerNode": 2}}
    result = answer(spec)
    assert isinstance(result, PlanFailure)
    assert "memory" in result.message.lower()


def test_accelerators_are_refused_because_the_trainer_computes_on_cpus():
    per_node = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}
    result = answer({**SPEC, "resources": {"perNode": per_node, "processesPerNode": 8}})
    assert isinstance(result, PlanFailure)
    assert result.message.startswith(
        "spec.resources.perNode[nvidia.com/gpu]: 8 asked for, but the trainer of"
    )
    assert "hint: ask for cpu and memory only" in result.message


def test_the_controller_brings_a_new_run_to_its_pods_with_the_real_planner():
    world = FakeWorld({"spec": SPEC})
    drive(world, lambda seen: len(seen.created) == 2 and bool(seen.status.get("resolved")))
    plan = world.status["plan"]
    assert plan["memoryMiB"] > 0
    assert plan["availableMiB"] > plan["memoryMiB"]
    assert plan["predictedStepMillis"] > 0


def test_plans_are_made_in_another_process():
    book = PlanBook()
    try:
        assert book.outcome(SPEC) is None
        book.request(SPEC)
        book.request(SPEC)
        assert isinstance(book.outcome(SPEC), PlanPending)
        deadline = time.monotonic() + 60
        while book.pending and time.monotonic() < deadline:
            time.sleep(0.02)
        assert isinstance(book.outcome(SPEC), PlanResult)
    finally:
        book.close()


def test_a_planner_whose_process_was_killed_is_asked_again():
    class Dying:
        def submit(self, *_):
            future: Future = Future()
            future.set_exception(BrokenProcessPool("killed"))
            return future

        def shutdown(self, **_):
            pass

    executors = iter([Dying(), threads()])
    book = PlanBook(executor=lambda: next(executors))
    book.request(SPEC)
    assert book.outcome(SPEC) is None
    book.request(SPEC)
    while book.pending:
        time.sleep(0.005)
    assert isinstance(book.outcome(SPEC), PlanResult)
    book.close()


def test_a_process_pool_is_not_forked():
    pool = process_pool()
    assert pool._mp_context.get_start_method() == "spawn"
    pool.shutdown()


def test_the_planners_process_ends_with_a_controller_that_is_killed(tmp_path):
    script = tmp_path / "controller.py"
    script.write_text(
        "import os, time\n"
        "from trainingrun.control.planning import process_pool\n"
        "if __name__ == '__main__':\n"
        "    print(process_pool().submit(os.getpid).result(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        planner = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{planner}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{planner}").exists()


def test_an_error_in_one_run_does_not_stop_the_controller(caplog):
    world = FakeWorld({"spec": SPEC})
    calls = []

    def resolve(manifest):
        calls.append(1)
        if len(calls) < 3:
            raise ZeroDivisionError("a fault of ours")
        return resolve_plainly(manifest)

    drive(world, lambda seen: len(seen.created) == 2, resolve=resolve)
    assert "a fault of ours" in caplog.text


def test_a_heartbeat_is_left_for_the_liveness_probe(tmp_path):
    file = tmp_path / "alive"
    world = FakeWorld({"spec": SPEC})
    drive(
        world, lambda _: file.exists(), settings=ControllerSettings(heartbeat_file=file, resync_seconds=0.01)
    )


def test_an_unreachable_cluster_at_the_start_is_survived():
    world = FakeWorld({"spec": SPEC})
    world.unavailable = True
    seen = []

    def until(_):
        seen.append(1)
        world.unavailable = len(seen) < 5
        return len(world.created) == 2

    drive(world, until)


def test_a_refusal_to_list_the_runs_is_survived(caplog):
    world = FakeWorld({"spec": SPEC})
    calls = []

    def run_keys():
        calls.append(1)
        if len(calls) < 4:
            raise Refused("Forbidden", "cannot list trainingruns")
        return FakeWorld.run_keys(world)

    world.run_keys = run_keys
    drive(world, lambda seen: len(seen.created) == 2)
    assert "cannot list trainingruns" in caplog.text


def test_refused_pods_are_remembered_from_one_look_to_the_next(caplog):
    caplog.set_level("INFO")
    world = FakeWorld({"spec": SPEC})
    world.refusal = Refused("Forbidden", "violates PodSecurity")
    began = world.at
    drive(world, lambda seen: seen.at > began + 200, settings=replace(QUICK, resync_seconds=1.0))
    assert 3 <= world.tries <= 14
    assert condition(world.status, "Stalled")["reason"] == "PodRefused"
    assert caplog.text.count("violates PodSecurity") <= 14


def test_a_stored_manifest_that_is_wrong_is_said_in_status():
    world = FakeWorld(
        {"apiVersion": "trainingrun.dev/v1alpha1", "kind": "TrainingRun", "spec": {"task": "sing"}}
    )
    drive(world, lambda seen: bool(seen.status), resolve=resolve_manifest)
    ready = condition(world.status, "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert "task" in ready["message"]


# ---- the queue


def test_a_key_is_taken_once_when_it_is_due():
    queue = WorkQueue(1.0, 8.0)
    queue.add(RUN, 10.0)
    queue.add(RUN, 12.0)
    assert queue.next_due() == 10.0
    assert queue.take(9.0) == []
    assert queue.take(10.0) == [RUN]
    assert queue.take(99.0) == []


def test_news_bring_a_key_forward():
    queue = WorkQueue(1.0, 8.0)
    queue.add(RUN, 100.0)
    queue.add(RUN, 5.0)
    assert queue.take(5.0) == [RUN]


def test_failures_back_off_and_news_do_not_shorten_that():
    queue = WorkQueue(1.0, 8.0)
    assert [queue.failed(RUN, 0.0) for _ in range(5)] == [1, 2, 4, 8, 8]
    queue.add(RUN, 1.0)
    assert queue.next_due() == 8.0
    queue.succeeded(RUN)
    queue.add(RUN, 1.0)
    assert queue.next_due() == 1.0


def test_a_failure_may_have_a_shorter_longest_back_off():
    queue = WorkQueue(1.0, 8.0)
    assert [queue.failed(RUN, 0.0, 3.0) for _ in range(4)] == [1, 2, 3, 3]


def test_what_is_gone_is_forgotten():
    queue = WorkQueue(1.0, 8.0)
    queue.failed(RUN, 0.0)
    queue.forget([RUN])
    assert queue.keys() == set()
    assert queue.failed(RUN, 0.0) == 1.0
