"""Calls of the verbs against a cluster in memory, and the run that most tests look at."""

from __future__ import annotations

from typing import Any

from tests.operator.cluster_api import FakeApi, a_plan, an_epoch_record, surroundings
from typer.testing import CliRunner, Result

from trainingrun.cli.main import app
from trainingrun.protocol.records import Lost


def call(api: FakeApi, *arguments: str, story: Any = None) -> Result:
    """The command as a user types it, against this cluster."""
    result = CliRunner().invoke(app, list(arguments), obj=surroundings(api, story))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def a_cluster(**status: Any) -> FakeApi:
    """A run that lost node-1 once, its two pods, three nodes, its records and events."""
    api = FakeApi()
    api.add_run(**status)
    for node in range(3):
        api.add_node(f"node-{node}")
    api.add_pod(0)
    api.add_pod(1, 1, node="node-2", restarts=2)
    lost = (Lost(1, 0, "node-1", "Silent"),)
    api.add_record(a_plan())
    api.add_record(an_epoch_record(1))
    api.add_record(an_epoch_record(2, slots=(0,), restore_step=120, last_step=121, lost=lost))
    api.add_event("EpochStarted", "epoch 1: 2 nodes", 1000)
    api.add_event("NodeLost", "node-1 lost (Infrastructure)", 600, type="Warning")
    api.add_event("BackOff", "restarting failed container", 500, pod="demo-1-1", type="Warning", count=3)
    return api
