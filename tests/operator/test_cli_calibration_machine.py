"""What ranks measured when their run began becomes a machine that later plans are made for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.operator.test_cli_calibration import EXAMPLE, a_local_run, call

from trainingrun.api.errors import CliExit
from trainingrun.control.measured import speed_in
from trainingrun.control.remembered import stepping_in
from trainingrun.planner.hardware.declared import declared_machine
from trainingrun.planner.node_shapes import declaration, node_of
from trainingrun.planner.types import NodeShape
from trainingrun.protocol import wire
from trainingrun.protocol.records import EpochSummary, MachineSpeed

SPEED = MachineSpeed(40_000_000_000, 7_000_000_000, link_bytes_per_second=200_000_000)


def test_the_status_keeps_what_no_record_tells_yet() -> None:
    block = {
        "epoch": 1, "firstStep": 1, "firstStepAtMillis": 1, "lastStep": 9, "lastStepAtMillis": 2, "tokens": 1,
        "stepMicros": 5, "speed": wire.to_json(SPEED),
    }  # fmt: skip
    known = stepping_in({"accounting": {"stepping": block}})
    assert known is not None
    assert speed_in([], known) == SPEED
    assert speed_in([], EpochSummary(epoch=1)) is None


def test_a_file_of_the_measured_machine_is_what_hardware_takes(tmp_path: Path) -> None:
    result = call("calibration", "machine", "demo", "--local", a_local_run(tmp_path / "state", SPEED)[0])
    assert result.exit_code == CliExit.OK, result.stderr
    machine: dict[str, Any] = json.loads(result.stdout)
    assert (machine["device"], machine["fp32Teraflops"], machine["networkGBs"]) == ("cpu", 0.04, 0.2)
    assert "links inside a node were not measured" in result.stderr
    file = tmp_path / "machine.json"
    file.write_text(result.stdout)
    plain = json.loads(call("plan", "-f", EXAMPLE, "--nodes", "1", "-o", "json").stdout)["rungs"][0]
    planned = call("plan", "-f", EXAMPLE, "--nodes", "1", "--hardware", file, "-o", "json")
    assert planned.exit_code == CliExit.OK, planned.stderr
    slower = json.loads(planned.stdout)["rungs"][0]
    assert slower["stepSeconds"] > plain["stepSeconds"]
    assert slower["availableBytes"] == plain["availableBytes"]


def test_a_run_whose_machine_nobody_measured_says_so(tmp_path: Path) -> None:
    result = call("calibration", "machine", "demo", "--local", a_local_run(tmp_path / "state")[0])
    assert result.exit_code == CliExit.MISSING
    assert "told how fast its machine is" in result.stderr


@pytest.mark.parametrize(
    ("precision", "device"), [("FP32", "cpu"), ("FP64", "cpu"), ("BF16", "nvidia.com/gpu")]
)
def test_a_measured_machine_is_as_fast_as_it_was_measured(precision: str, device: str) -> None:
    node = NodeShape(
        processes=2, memory_bytes=8 << 30, cores=4.0, device=device, flops_per_second=1e12,
        link_bytes_per_second=2e9, local_link_bytes_per_second=3e9, reserved_bytes_per_process=0,
        memory_bytes_per_second=5e9, name=device,
    )  # fmt: skip
    speed = replace(SPEED, local_link_bytes_per_second=400_000_000)
    spec = {
        "resources": {"perNode": {"cpu": "4", "memory": "8Gi"}},
        "training": {"precision": precision},
    }
    found = node_of(declared_machine(declaration(node, speed, precision)), spec)
    assert found.flops_per_second == pytest.approx(speed.matmul_flops)
    assert found.memory_bytes == node.memory_bytes
    assert found.link_bytes_per_second == pytest.approx(2 * speed.link_bytes_per_second)
    assert found.local_link_bytes_per_second == pytest.approx(speed.local_link_bytes_per_second)
    assert found.device == device
