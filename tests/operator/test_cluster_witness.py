"""The witness of the cluster's scenarios objects to what must never be so, and to nothing else."""

from __future__ import annotations

from typing import Any

from tests.cluster.witness import STORM, Witness

from trainingrun.api.constants import Label


def a_pod(slot: int, incarnation: int, at: str = "03:04:05", **changes: Any) -> dict[str, Any]:
    name = f"run-{slot}-{incarnation}"
    labels = {Label.SLOT.value: str(slot), Label.INCARNATION.value: str(incarnation)}
    about = {
        "name": name,
        "uid": f"uid-{name}",
        "labels": labels,
        "creationTimestamp": f"2026-11-30T{at}Z",
        "ownerReferences": [{"uid": "run", "controller": True}],
        **changes,
    }
    return {"metadata": about, "spec": {}, "status": {"phase": "Running"}}


LEAVING = {"deletionTimestamp": "2026-11-30T03:05:35Z", "deletionGracePeriodSeconds": 30}


def witness_of(*looks: list[dict[str, Any]]) -> Witness:
    witness = Witness()
    witness.run_uid = "run"
    for look in looks:
        witness.saw(look)
    return witness


def test_a_replaced_pod_that_is_being_deleted_is_no_duplicate() -> None:
    witness = witness_of([a_pod(0, 0), a_pod(1, 0)], [a_pod(0, 0, **LEAVING), a_pod(0, 1), a_pod(1, 0)])
    assert witness.objections() == []
    assert witness.names() == ["run-0-0", "run-0-1", "run-1-0"]
    old = witness.pods["uid-run-0-0"]
    assert old.delete_asked_at - old.created_at == 60.0


def test_two_live_pods_for_a_seat_are_told_even_if_it_was_only_for_a_moment() -> None:
    witness = witness_of([a_pod(1, 0), a_pod(1, 1)], [a_pod(1, 1)])
    assert witness.objections() == ["seat 1 has the live pods run-1-0, run-1-1 at once"]


def test_a_pod_that_does_not_belong_to_the_run_is_told() -> None:
    witness = witness_of([a_pod(0, 0, ownerReferences=[])])
    assert witness.objections() == ["pod run-0-0 belongs to nobody, not to the run"]


def test_more_pods_for_a_seat_than_the_back_off_allows_are_a_storm() -> None:
    calm = [a_pod(0, number, f"03:04:{number:02}", **LEAVING) for number in range(STORM)]
    assert witness_of(calm).objections() == []
    wild = [*calm, a_pod(0, STORM, "03:04:50", **LEAVING)]
    assert witness_of(wild).objections() == [f"seat 0 got {STORM + 1} pods within a minute"]
