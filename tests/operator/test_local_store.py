"""The files of the local cluster: create-only, compare and swap, and whole whenever the writer dies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.operator.local_builders import a_manifest, a_revision, a_run, a_template, an_epoch

from trainingrun.cluster.local import files
from trainingrun.cluster.local.podstore import Binding, PodStore
from trainingrun.cluster.local.store import Store
from trainingrun.ports import Conflict, EventRecord

WRITES = ("open", "write", "link", "rename", "replace", "unlink", "mkdir", "rmdir")


def test_a_run_that_is_applied_again_keeps_its_uid_and_a_changed_spec_is_a_new_generation(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    first = store.apply(a_manifest(task="pretrain"), 1.0)
    same = store.apply(a_manifest(task="pretrain"), 2.0)
    changed = store.apply(a_manifest(task="sft"), 3.0)
    assert (same.uid, same.generation, same.resource_version) == (first.uid, 1, first.resource_version)
    assert (changed.uid, changed.generation) == (first.uid, 2)
    assert changed.resource_version != first.resource_version


def test_a_record_is_never_overwritten(tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    store = Store(tmp_path)
    store.create_record(an_epoch(uid, 1, nonce="mine"))
    with pytest.raises(Conflict):
        store.create_record(an_epoch(uid, 1, nonce="theirs"))
    assert [epoch.nonce for epoch in store.epochs("demo", uid)] == ["mine"]


def test_of_many_writers_of_one_record_exactly_one_wins(tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    won: list[str] = []
    start = threading.Barrier(8)

    def write(nonce: str) -> None:
        start.wait()
        try:
            Store(tmp_path).create_record(an_epoch(uid, 1, nonce=nonce))
            won.append(nonce)
        except Conflict:
            pass

    threads = [threading.Thread(target=write, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [epoch.nonce for epoch in Store(tmp_path).epochs("demo", uid)]


def test_records_come_in_the_order_of_their_numbers_and_only_those_after(tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    store = Store(tmp_path)
    for number in (10, 2, 1):
        store.create_record(an_epoch(uid, number))
    store.create_record(a_revision(uid, 2))
    assert [epoch.epoch for epoch in store.epochs("demo", uid)] == [1, 2, 10]
    assert [epoch.epoch for epoch in store.epochs("demo", uid, after=1)] == [2, 10]
    assert [revision.revision for revision in store.revisions("demo", uid)] == [1, 2]


def test_a_record_for_a_run_that_is_gone_is_a_conflict(tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    Store(tmp_path).remove_run("demo")
    with pytest.raises(Conflict):
        Store(tmp_path).create_record(an_epoch(uid, 1))
    assert Store(tmp_path).run_names() == []


def test_records_of_an_earlier_run_of_the_same_name_are_not_of_this_one(tmp_path: Path) -> None:
    first = a_run(tmp_path)
    Store(tmp_path).remove_run("demo")
    second = a_run(tmp_path)
    assert first != second
    assert Store(tmp_path).revisions("demo", first) == []
    assert Store(tmp_path).name_of(first) is None


def test_a_status_that_changed_since_it_was_read_is_not_overwritten(tmp_path: Path) -> None:
    a_run(tmp_path)
    store = Store(tmp_path)
    read = store.run("demo")
    assert read is not None
    store.write_status("demo", {"by": "first"}, read.resource_version)
    with pytest.raises(Conflict):
        store.write_status("demo", {"by": "second"}, read.resource_version)
    found = store.run("demo")
    assert found is not None
    assert found.status == {"by": "first"}
    store.write_status("demo", {"by": "third"}, found.resource_version)


def test_a_changed_manifest_makes_the_status_of_the_old_one_a_conflict(tmp_path: Path) -> None:
    store = Store(tmp_path)
    read = store.apply(a_manifest(task="pretrain"), 1.0)
    store.apply(a_manifest(task="sft"), 2.0)
    with pytest.raises(Conflict):
        store.write_status("demo", {}, read.resource_version)


def test_of_many_writers_of_one_status_version_exactly_one_wins(tmp_path: Path) -> None:
    a_run(tmp_path)
    read = Store(tmp_path).run("demo")
    assert read is not None
    outcomes: list[str] = []

    def write(number: int) -> None:
        try:
            Store(tmp_path).write_status("demo", {"by": number}, read.resource_version)
            outcomes.append("won")
        except Conflict:
            outcomes.append("lost")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]


def test_a_pod_is_created_once_and_bound_once(tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    pods = PodStore(Store(tmp_path).layout)
    pods.create(a_template(uid), 1.0)
    with pytest.raises(Conflict):
        pods.create(a_template(uid), 2.0)
    (pod,) = pods.of_run("demo")
    assert pods.bind(pod, Binding("node-0", "life", str(tmp_path / "m")))
    assert not pods.bind(pod, Binding("node-1", "life", str(tmp_path / "m")))


def test_a_pod_that_no_node_took_is_gone_when_it_is_deleted_and_can_not_be_bound_any_more(
    tmp_path: Path,
) -> None:
    uid = a_run(tmp_path)
    pods = PodStore(Store(tmp_path).layout)
    pods.create(a_template(uid), 1.0)
    (pod,) = pods.of_run("demo")
    pods.delete(pod)
    assert pods.of_run("demo") == []
    assert not pods.bind(pod, Binding("node-0", "life", ""))


def test_a_deletion_is_of_that_very_pod_and_not_of_a_later_one_of_its_name(tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    pods = PodStore(Store(tmp_path).layout)
    pods.create(a_template(uid), 1.0)
    (old,) = pods.of_run("demo")
    pods.bind(old, Binding("node-0", "life", str(tmp_path / "m")))
    pods.remove(old)
    pods.create(a_template(uid), 2.0)
    files.replace(old.folder / "deleting", old.pod.uid)  # a late hand
    (new,) = pods.of_run("demo")
    assert not new.deleting


def test_events_are_read_in_order_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    a_run(tmp_path)
    store = Store(tmp_path)
    store.emit("demo", EventRecord(1.0, "Normal", "Planned", "a"))
    with (store.layout.run("demo") / "events.jsonl").open("a") as file:
        file.write('{"at": 2.0, "ty\n')
    store.emit("demo", EventRecord(3.0, "Warning", "NodeLost", "b"))
    assert [event.reason for event in store.events("demo")] == ["Planned", "NodeLost"]
    assert [event.reason for event in store.events("demo", skip=1)] == ["NodeLost"]
    store.emit("nobody", EventRecord(1.0, "Normal", "Planned", "a"))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    a_run(tmp_path)
    path = Store(tmp_path).layout.run("demo") / "run.json"
    path.write_text("{")
    with pytest.raises(files.StateDamaged, match=str(path)):
        Store(tmp_path).run("demo")


def _killed_at(write: int, action: Callable[[], None]) -> bool:
    """Run `action` in a child that ends, as by SIGKILL, just before its n-th write. True: it was killed."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def dying(real: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **named: object) -> object:
                nonlocal count
                if count == write:
                    os._exit(9)
                count += 1
                return real(*arguments, **named)

            return call

        for name in WRITES:
            setattr(os, name, dying(getattr(os, name)))
        try:
            action()
        except BaseException:  # noqa: BLE001 - the child must never return into the test
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 9


def _every_kill(action: Callable[[], None], check: Callable[[], None], reset: Callable[[], None]) -> int:
    """Kill `action` before each of its writes in turn, and check the state each time."""
    write = 0
    while True:
        reset()
        killed = _killed_at(write, action)
        check()
        if not killed:
            return write
        write += 1


def test_killed_before_any_write_a_new_run_is_whole_or_not_there(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def check() -> None:
        for name in store.run_names():
            assert store.run(name) is not None
        assert store.apply(a_manifest(), 2.0).generation == 1

    assert (
        _every_kill(lambda: store.apply(a_manifest(), 1.0) and None, check, lambda: store.remove_run("demo"))
        > 2
    )


def test_killed_before_any_write_a_record_is_whole_or_not_there_and_can_be_made(tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    store = Store(tmp_path)
    record = store.layout.records("demo") / "demo-e1.json"

    def check() -> None:
        if not store.epochs("demo", uid):
            store.create_record(an_epoch(uid, 1))
        with pytest.raises(Conflict):
            store.create_record(an_epoch(uid, 1))

    assert _every_kill(
        lambda: store.create_record(an_epoch(uid, 1)), check, lambda: record.unlink(missing_ok=True)
    )


def test_killed_before_any_write_a_status_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    a_run(tmp_path)
    store = Store(tmp_path)

    def version() -> str:
        run = store.run("demo")
        assert run is not None
        return run.resource_version

    def check() -> None:
        run = store.run("demo")
        assert run is not None
        assert run.status in ({"old": True}, {"new": True})

    assert _every_kill(
        lambda: store.write_status("demo", {"new": True}, version()),
        check,
        lambda: store.write_status("demo", {"old": True}, version()),
    )


def test_killed_before_any_write_a_pod_is_whole_or_not_there(tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    pods = PodStore(Store(tmp_path).layout)

    def reset() -> None:
        for pod in pods.of_run("demo"):
            pods.remove(pod)

    def check() -> None:
        for pod in pods.of_run("demo"):
            assert pod.pod.run_uid == uid

    assert _every_kill(lambda: pods.create(a_template(uid), 1.0), check, reset) > 2


def test_killed_before_any_write_of_a_deletion_it_can_be_asked_for_again(tmp_path: Path) -> None:
    uid = a_run(tmp_path)
    pods = PodStore(Store(tmp_path).layout)

    def reset() -> None:
        if not pods.of_run("demo"):
            pods.create(a_template(uid), 1.0)

    def check() -> None:
        for pod in pods.of_run("demo"):
            if pod.binding is None:
                pods.delete(pod)
            else:
                pods.remove(pod)  # what the port does with a pod that nobody can take any more
        assert pods.of_run("demo") == []

    assert _every_kill(lambda: pods.delete(pods.of_run("demo")[0]), check, reset)
