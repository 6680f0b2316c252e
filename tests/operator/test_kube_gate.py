"""Who gets through the gate, and how long that counts."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.operator.gate_world import (
    CONTROLLER,
    NAMESPACE,
    POD_NAME,
    RUN,
    UID,
    FakeServer,
    a_pod,
    a_token,
)

from trainingrun.cluster.kubernetes.gate import DENIED_SECONDS, TokenGate
from trainingrun.ports import Caller, Denied, Refused, Unavailable
from trainingrun.protocol.names import TOKEN_AUDIENCE


class Wall:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


class World:
    def __init__(self, **options: Any) -> None:
        self.server, self.wall = FakeServer(), Wall()
        self.gate = TokenGate(self.server, TOKEN_AUDIENCE, CONTROLLER, self.wall, **options)


def test_a_worker_is_admitted_to_the_seat_that_its_pod_has():
    world = World()
    token = world.server.add_worker(3, 2)
    assert world.gate.known(token) is None
    caller = world.gate.admit(token)
    assert caller == Caller(UID, 3, 2, f"{RUN}-3-2", NAMESPACE)
    assert world.gate.known(token) == caller
    assert not caller.is_controller


def test_the_controller_is_known_by_its_account():
    world = World()
    assert world.gate.admit(world.server.controller_token()).is_controller


def test_an_account_that_is_not_named_is_nobody_s_controller():
    server = FakeServer()
    token = server.controller_token()
    server.users[token]["username"] = ""
    with pytest.raises(Denied, match="nobody is not bound to a pod"):
        TokenGate(server, TOKEN_AUDIENCE, "").admit(token)


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("", "no token of a service account"),
        ("abc", "no token of a service account"),
        ("a.b.c", "no token of a service account"),
        ("a.bnVsbA.c", "no token of a service account"),
        ("x" * 20000, "no token of a service account"),
        (a_token(time.time() - 1), "has expired"),
        (a_token(time.time() + 3600, audience=["https://kubernetes.default.svc"]), "not for the audience"),
        (a_token(time.time() + 3600, exp="never"), "says no time at which it expires"),
    ],
)
def test_what_cannot_be_a_token_for_us_is_turned_away_without_asking_anybody(token, problem):
    world = World()
    with pytest.raises(Denied, match=problem):
        world.gate.admit(token)
    assert world.server.reviews == 0


def test_a_token_that_the_api_server_does_not_know_is_denied_and_not_asked_about_again_at_once():
    world = World()
    forged = a_token(time.time() + 600, "forged")
    for _ in range(3):
        with pytest.raises(Denied, match="token not known"):
            world.gate.admit(forged)
    assert world.server.reviews == 1
    world.wall.ahead = DENIED_SECONDS + 0.1
    with pytest.raises(Denied):
        world.gate.admit(forged)
    assert world.server.reviews == 2


def owned_by(**changes: Any) -> dict[str, Any]:
    (owner,) = a_pod()["metadata"]["ownerReferences"]
    return {"ownerReferences": [owner | changes]}


def labelled(**changes: Any) -> dict[str, Any]:
    labels = {f"trainingrun.dev/{name.replace('_', '-')}": value for name, value in changes.items()}
    return {"labels": a_pod()["metadata"]["labels"] | labels}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"uid": "another"}, "is another one than the pod of this token"),
        ({"ownerReferences": []}, "no worker of a TrainingRun"),
        (owned_by(kind="Job"), "no worker of a TrainingRun"),
        (owned_by(apiVersion="example.com/v1"), "no worker of a TrainingRun"),
        (owned_by(controller=False), "no worker of a TrainingRun"),
        (owned_by(uid="another"), "label trainingrun.dev/run-uid does not name the run that owns it"),
        (owned_by(name="other"), "does not have the name of slot 0, incarnation 0 of run other"),
        ({**owned_by(uid="another"), **labelled(run_uid="another")}, "there is no run team/demo with uid"),
        (labelled(slot="1"), "does not have the name of slot 1"),
        (labelled(incarnation="7"), "does not have the name of slot 0, incarnation 7"),
        (labelled(slot="-1"), "label trainingrun.dev/slot is '-1', not a number"),
        ({"labels": {}}, "label trainingrun.dev/slot is '', not a number"),
    ],
)
def test_a_pod_that_is_not_what_the_controller_makes_is_denied(changes, problem):
    world = World()
    token = world.server.token_of(a_pod())
    world.server.add_pod(**changes)
    with pytest.raises(Denied, match=problem):
        world.gate.admit(token)


def test_a_pod_of_another_namespace_cannot_claim_a_run_by_its_uid():
    world = World()
    token = world.server.add_worker(namespace="elsewhere")
    with pytest.raises(Denied, match="there is no run elsewhere/demo with uid uid-1"):
        world.gate.admit(token)


def test_a_pod_s_name_counts_in_the_namespace_of_its_own_account_only():
    world = World()
    token = world.server.token_of(world.server.add_pod(), namespace="elsewhere")
    with pytest.raises(Denied, match="pod elsewhere/demo-0-0 does not exist"):
        world.gate.admit(token)


def test_a_token_that_is_bound_to_no_pod_is_denied():
    world = World()
    token = world.server.add_worker()
    del world.server.users[token]["extra"][POD_NAME]
    with pytest.raises(Denied, match="is not bound to a pod"):
        world.gate.admit(token)


def test_a_pod_that_is_being_deleted_may_still_say_its_last_words():
    world = World()
    token = world.server.add_worker(deletionTimestamp="2026-01-01T00:00:00Z")
    assert world.gate.admit(token).slot == 0


def test_a_known_token_counts_while_the_api_server_is_away_until_it_expires():
    world = World()
    token = world.server.add_worker(seconds=600)
    caller = world.gate.admit(token)
    world.server.away = True
    world.wall.ahead = 590
    assert world.gate.known(token) == world.gate.admit(token) == caller
    world.wall.ahead = 601
    assert world.gate.known(token) is None
    with pytest.raises(Denied, match="has expired"):
        world.gate.admit(token)


def test_a_token_that_lives_for_years_is_looked_at_again_after_hours():
    world = World()
    token = world.server.add_worker(seconds=10**8)
    world.gate.admit(token)
    world.wall.ahead = 3 * 3600
    assert world.gate.known(token) is None


def test_an_unknown_token_is_no_denial_while_the_api_server_is_away():
    world = World()
    token = world.server.add_worker()
    world.server.away = True
    with pytest.raises(Unavailable, match="cannot be reached"):
        world.gate.admit(token)
    world.server.away = False
    with pytest.raises(Unavailable):  # for a moment nobody waits for a server that was away just now
        world.gate.admit(token)
    world.wall.ahead = 3
    assert world.gate.admit(token).run_uid == UID


def test_a_gone_pod_cannot_be_admitted_anew_but_is_known_for_a_while():
    world = World()
    token = world.server.add_worker()
    world.gate.admit(token)
    world.server.remove_pod(f"{RUN}-0-0")
    assert world.gate.known(token) is not None
    with pytest.raises(Denied, match="does not exist any more"):
        world.gate.admit(token)
    assert world.gate.known(token) is None


def test_a_right_that_membership_lacks_is_not_the_caller_s_fault():
    class Forbidding(FakeServer):
        def create(self, path: str, body: Any) -> Any:
            raise Refused("Forbidden", "cannot create tokenreviews")

    gate = TokenGate(Forbidding(), TOKEN_AUDIENCE, CONTROLLER)
    with pytest.raises(Unavailable, match=r"membership's account is refused.*cannot create tokenreviews"):
        gate.admit(a_token(time.time() + 60))


def test_strangers_do_not_push_out_those_who_are_known():
    world = World(remembered=4)
    token = world.server.add_worker()
    world.gate.admit(token)
    for number in range(10):
        with pytest.raises(Denied):
            world.gate.admit(a_token(time.time() + 60, f"stranger {number}"))
    assert world.gate.known(token) is not None
    for slot in range(1, 6):
        world.gate.admit(world.server.add_worker(slot))
    assert world.gate.known(token) is None  # memory is bounded; it is only asked about again
    assert world.gate.admit(token).slot == 0
