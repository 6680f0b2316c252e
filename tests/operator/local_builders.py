"""Builders for tests of the local cluster: a run, its revision, a pod, and nodes that run the fake agent."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainingrun.cluster.local.settings import LocalSettings
from trainingrun.cluster.local.store import Store
from trainingrun.ports import Pod, PodTemplate
from trainingrun.protocol.records import Epoch, Restore, RestoreSource, Revision, Rung, Trigger
from trainingrun.protocol.records import Store as TcpStore

FAKE_AGENT = (sys.executable, "-S", str(Path(__file__).with_name("fake_agent.py")))
RUNG = Rung(1, 1, 1, 1, 1, 1, 1, 1, 0, 1)


def a_manifest(name: str = "demo", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": name},
        "spec": spec,
    }


def a_revision(
    uid: str, number: int = 1, run: str = "demo", starts: list[dict[str, Any]] | None = None
) -> Revision:
    return Revision(
        name=f"{run}-r{number}",
        run=run,
        run_uid=uid,
        revision=number,
        spec={"starts": starts or [{"exit": None}]},
        rungs=(RUNG,),
        plan={},
        planner_version="test",
    )


def an_epoch(uid: str, number: int, run: str = "demo", nonce: str = "n") -> Epoch:
    return Epoch(
        name=f"{run}-e{number}",
        run=run,
        run_uid=uid,
        epoch=number,
        revision=f"{run}-r1",
        nonce=nonce,
        created_at=1.0,
        members=(),
        rung=RUNG,
        store=TcpStore("127.0.0.1", 1, "e"),
        restore=Restore(RestoreSource.INITIAL),
        trigger=Trigger.STARTED,
        detected_at=1.0,
    )


def a_template(
    uid: str, slot: int = 0, incarnation: int = 1, run: str = "demo", **resources: str
) -> PodTemplate:
    return PodTemplate(run, uid, slot, incarnation, f"{run}-r1", {"cpu": "1", **resources}, 2)


def a_run(root: Path, name: str = "demo", starts: list[dict[str, Any]] | None = None) -> str:
    """A stored run with a revision; its uid."""
    store = Store(root)
    uid = store.apply(a_manifest(name), 1.0).uid
    store.create_record(a_revision(uid, run=name, starts=starts))
    return uid


def settings_for(folder: Path, **changes: Any) -> LocalSettings:
    memory = folder / "memory"
    memory.mkdir(exist_ok=True)
    values = {
        "agent_command": FAKE_AGENT,
        "memory_folder": str(memory),
        "grace_seconds": 1.0,
        "poll_seconds": 0.02,
    }
    return LocalSettings(**{**values, "backoff_first_seconds": 0.2, **changes})


def wait_until(condition: Callable[[], Any], what: str, timeout_seconds: float = 10.0) -> Any:
    """The first true value of `condition`; fails with `what` when there is none in time."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {timeout_seconds:g} s: {what}")


def only(pods: Any) -> Pod:
    (pod,) = pods
    return pod
