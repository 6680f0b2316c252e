"""`trainingrun plan` and `explain` as a user meets them: what is printed where, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from trainingrun.api.errors import CliExit
from trainingrun.cli.main import app
from trainingrun.cli.output import bar, table

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "golden" / "run.yaml"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def a_manifest(folder: Path, **changes: Any) -> Path:
    """The example with blocks of its spec updated: a_manifest(tmp_path, scale={"minNodes": 2})."""
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["training"]["optimizer"]["learningRate"] = 0.005
    for block, values in changes.items():
        document["spec"].setdefault(block, {}).update(values)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_example_plans_for_each_of_its_sizes() -> None:
    result = call("plan", "-f", EXAMPLE)
    assert result.exit_code == CliExit.OK
    header, *rows = result.stdout.splitlines()
    assert header.split()[:5] == ["NODES", "PIPELINE", "REPLICATE", "SHARD", "TENSOR"]
    assert [row.split()[:5] for row in rows] == [["1", "1", "1", "2", "1"], ["2", "1", "2", "2", "1"]]
    assert all(row.endswith("yes") for row in rows)
    assert "1.05 M parameters" in result.stderr
    assert "data parallelism alone fits" in result.stderr


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_machine_formats_are_whole_documents_on_stdout_and_nothing_is_said(form: str, read: Any) -> None:
    result = call("plan", "-f", EXAMPLE, "-o", form)
    document = read(result.stdout)
    assert document["name"] == "pretrain-stdlib"
    assert [rung["nodes"] for rung in document["rungs"]] == [1, 2]
    assert result.stderr == ""


def test_nodes_shows_one_size_also_one_outside_of_the_scale() -> None:
    for nodes in (1, 2, 8):
        document = json.loads(call("plan", "-f", EXAMPLE, "--nodes", str(nodes), "-o", "json").stdout)
        assert [rung["nodes"] for rung in document["rungs"]] == [nodes]


def test_a_size_outside_of_the_scale_is_planned_alone_and_that_is_said() -> None:
    result = call("explain", "-f", EXAMPLE, "--nodes", "8")
    assert result.stdout.startswith("pretrain-stdlib on 8 nodes: ")
    assert "note: --nodes 8 is outside of the scale (1 to 2); that size is planned alone" in result.stderr
    assert "outside of the scale" not in call("explain", "-f", EXAMPLE, "--nodes", "2").stderr


def test_explain_gives_reasons_the_bill_in_bytes_and_the_neighbours() -> None:
    result = call("explain", "-f", EXAMPLE, "--nodes", "1")
    assert result.exit_code == CliExit.OK
    text = result.stdout
    assert text.startswith(
        "pretrain-stdlib on 1 node: tensor 1 x shard 2 x pipeline 1 x replicate 1 = 2 processes"
    )
    assert "data parallelism alone fits" in text
    assert "reserved" in text
    assert "536,870,912 B" in text
    assert "##########" in text
    assert "matmul parameters" in text
    assert "\n  tensor 2 " in text
    assert "micro-batch" in text
    assert "recompute Full" in text
    assert "utilisation (of what the cores reach): " in text
    assert "probability of running out of memory" in text
    assert "\x1b[" not in text


def test_nodes_that_keep_each_other_s_snapshots_are_told_with_what_that_takes(tmp_path: Path) -> None:
    stages = {
        "parallelism": {"axes": {"pipeline": 2}},
        "resources": {"perNode": {"cpu": "1", "memory": "4Gi"}, "processesPerNode": 1},
        "scale": {"minNodes": 2, "maxNodes": 2},
    }
    manifest = a_manifest(tmp_path, **stages)
    text = call("explain", "-f", manifest).stdout
    assert "state copies 2: each node keeps the snapshots of a buddy too" in text
    assert "two snapshots of the next node, in the pod's memory" in text
    (row,) = call("plan", "-f", manifest).stdout.splitlines()[1:]
    assert "2 (buddies)" in row
    (rung,) = json.loads(call("plan", "-f", manifest, "-o", "json").stdout)["rungs"]
    assert (rung["stateCopies"], rung["buddies"]) == (2, True)
    assert rung["memory"]["buddies"] > 0
    # Neighbours and the user's own are shown in the same words, and say what they have to give up.
    (own,) = (line for line in text.splitlines() if line.startswith("  this plan "))
    (smaller,) = (line for line in text.splitlines() if line.startswith("  pipeline 1 "))
    assert own.rstrip().endswith("2 (buddies)")
    assert "buddies" not in smaller
    asked = call("what-if", "-f", manifest, "--micro-batch", "2")
    assert "  state copies 2: each node keeps the snapshots of a buddy too" in asked.stdout
    (row,) = (line for line in asked.stdout.splitlines() if line.startswith("  copies of the state"))
    assert row.split()[-4:] == ["2", "(buddies)"] * 2
    document = json.loads(call("what-if", "-f", manifest, "--micro-batch", "2", "-o", "json").stdout)
    assert [document[who]["buddies"] for who in ("asked", "planner")] == [True, True]
    assert document["asked"]["memory"]["buddies"] > 0


def test_what_if_says_why_a_configuration_has_one_copy_only(tmp_path: Path) -> None:
    manifest = a_manifest(tmp_path, checkpoint={"memory": {"copies": 1}}, scale={"minNodes": 2})
    text = call("what-if", "-f", manifest, "--nodes", "2", "--shard", "4", "--replicate", "1").stdout
    assert "  state copies 1: a lost node takes a part of the only copy" in text
    (row,) = (line for line in text.splitlines() if line.startswith("  copies of the state"))
    assert row.split()[-2:] == ["1", "2"]


def test_snapshots_of_a_buddy_beside_accelerators_are_in_the_memory_of_the_host(tmp_path: Path) -> None:
    stages = {
        "parallelism": {"axes": {"pipeline": 4}},
        "resources": {"perNode": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": 2}},
        "scale": {"minNodes": 2, "maxNodes": 2},
    }
    document = yaml.safe_load(a_manifest(tmp_path).read_text())
    document["spec"] |= stages
    manifest = tmp_path / "accelerated.yaml"
    manifest.write_text(yaml.safe_dump(document))
    text = call("explain", "-f", manifest, "--hardware", "h100x2").stdout
    assert "state copies 2: each node keeps the snapshots of a buddy too" in text
    assert "beside the accelerators, snapshots of a node and of its buddy: " in text
    assert "N buddies" not in text


def test_explain_says_why_a_neighbour_is_not_possible(tmp_path: Path) -> None:
    manifest = a_manifest(tmp_path, parallelism={"axes": {"tensor": 2}})
    text = call("explain", "-f", manifest).stdout
    assert "tensor 2 pinned" in text
    assert "not possible: tensor 4 does not divide 2 key-value heads" in text


def test_a_pin_that_cannot_be_is_bad_input(tmp_path: Path) -> None:
    result = call("plan", "-f", a_manifest(tmp_path, parallelism={"axes": {"tensor": 3}}))
    assert result.exit_code == CliExit.BAD_INPUT
    assert result.stdout == ""
    assert "spec.parallelism.axes.tensor" in result.stderr
    assert "tensor 3 does not divide 4 attention heads (4 / 3 = 1.33); nearest that fits: 2" in result.stderr
    assert "hint: set tensor to one of: 1, 2" in result.stderr


def test_a_model_that_fits_nowhere_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    manifest = a_manifest(tmp_path, resources={"perNode": {"cpu": "1", "memory": "512Mi"}})
    result = call("explain", "-f", manifest)
    assert result.exit_code == CliExit.NOTHING_FITS
    assert "nearest that fits: perNode.memory 2Gi" in result.stderr


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    result = call("plan", "-f", tmp_path / "none.yaml")
    assert result.exit_code == CliExit.MISSING
    assert "there is no such file" in result.stderr


def test_an_invalid_manifest_is_bad_input(tmp_path: Path) -> None:
    result = call("plan", "-f", a_manifest(tmp_path, scale={"minNodes": 5}))
    assert result.exit_code == CliExit.BAD_INPUT
    assert "spec.scale.minNodes" in result.stderr


def test_an_accelerator_must_be_named_and_then_plans(tmp_path: Path) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["resources"] = {"perNode": {"cpu": 96, "memory": "900Gi", "nvidia.com/gpu": 8}}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(document).replace("5e-3", "0.005"))
    refused = call("plan", "-f", path)
    assert refused.exit_code == CliExit.BAD_INPUT
    assert "--accelerator" in refused.stderr
    planned = call("plan", "-f", path, "--accelerator", "NVIDIA-H100-80GB-HBM3")
    assert planned.exit_code == CliExit.OK
    assert "79.2 GiB" in planned.stdout


def test_a_range_of_nodes_stands_in_for_the_scale() -> None:
    document = json.loads(call("plan", "-f", EXAMPLE, "--nodes", "2..4", "-o", "json").stdout)
    assert [rung["nodes"] for rung in document["rungs"]] == [2, 3, 4]
    for text in ("4..2", "0..3", "a..b", "1..", "-3"):
        refused = call("plan", "-f", EXAMPLE, "--nodes", text)
        assert refused.exit_code == CliExit.BAD_INPUT
        assert "such as 1..64" in refused.stderr or "No such option" in refused.stderr


def test_hardware_stands_in_for_what_the_manifest_says_of_machines(tmp_path: Path) -> None:
    manifest = a_manifest(tmp_path, training={"precision": "BF16"})
    result = call("plan", "-f", manifest, "--hardware", "h100x4")
    assert result.exit_code == CliExit.OK
    assert "79.2 GiB" in result.stdout
    assert "the manifest asks for cores only; this is about 4 x NVIDIA-H100-80GB-HBM3" in result.stderr
    both = call("plan", "-f", manifest, "--hardware", "h100x4", "--accelerator", "NVIDIA-H200")
    assert both.exit_code == CliExit.BAD_INPUT
    assert "--hardware names the accelerator already" in both.stderr


def test_unknown_hardware_is_refused_with_the_nearest_names() -> None:
    result = call("explain", "-f", EXAMPLE, "--hardware", "h1000x8")
    assert result.exit_code == CliExit.BAD_INPUT
    assert "h1000 is not hardware that the planner knows; nearest: h100" in result.stderr


def test_a_format_that_the_accelerators_do_not_have_is_refused(tmp_path: Path) -> None:
    manifest = a_manifest(tmp_path, training={"precision": "BF16"})
    result = call("plan", "-f", manifest, "--hardware", "v100x8")
    assert result.exit_code == CliExit.BAD_INPUT
    assert "has no rate in BF16 (spec.training.precision)" in result.stderr


def test_a_machine_can_be_declared_in_a_file(tmp_path: Path) -> None:
    shape: dict[str, Any] = {
        "accelerators": 4, "memoryGiB": 64, "memoryBandwidthGBs": 2000, "bf16Teraflops": 400,
        "fp32Teraflops": 50, "localLinkGBs": 200, "networkGBs": 25, "pricePerHour": 10,
    }  # fmt: skip
    path = tmp_path / "newchip.yaml"
    path.write_text(yaml.safe_dump(shape))
    result = call("plan", "-f", EXAMPLE, "--hardware", path)
    assert result.exit_code == CliExit.OK
    assert "64.0 GiB" in result.stdout
    assert "newchip" in result.stderr
    assert "COST/1B TOKENS" in result.stdout
    path.write_text(yaml.safe_dump({**shape, "memoryGiB": -1}))
    refused = call("plan", "-f", EXAMPLE, "--hardware", path)
    assert refused.exit_code == CliExit.BAD_INPUT
    assert "newchip.yaml.memoryGiB: -1 cannot be the memory of one accelerator" in refused.stderr
    assert call("plan", "-f", EXAMPLE, "--hardware", tmp_path / "none.yaml").exit_code == CliExit.MISSING


def test_wrong_arguments_are_bad_input() -> None:
    assert call("plan").exit_code == CliExit.BAD_INPUT
    assert call("plan", "-f", EXAMPLE, "--nodes", "0").exit_code == CliExit.BAD_INPUT
    assert call("plan", "-f", EXAMPLE, "-o", "xml").exit_code == CliExit.BAD_INPUT


def test_planning_starts_at_once_and_loads_no_framework() -> None:
    code = (
        "import sys\n"
        "from trainingrun.cli.main import app\n"
        f"app(['plan', '-f', {str(EXAMPLE)!r}, '-o', 'json'], standalone_mode=False)\n"
        "heavy = {'torch', 'kopf', 'kubernetes', 'aiohttp', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    seconds = time.perf_counter() - started
    assert json.loads(done.stdout)["rungs"]
    assert done.stderr.strip() == "[]"
    assert seconds < 10  # 0.4 s on an idle machine; the bound is for busy ones


def test_tables_align_and_bars_are_readable_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(("A", "LONG"), [("wide cell", "x")]) == "A          LONG\nwide cell  x\n"
    assert bar(0.5, width=10) == "#####"
    assert bar(0.001, width=10) == "."
    assert bar(0.0) == ""


def test_a_size_that_holds_no_copy_has_no_figures(tmp_path: Path) -> None:
    wide = {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    }
    config = (
        yaml.safe_load(EXAMPLE.read_text())["spec"]["model"]["config"] | wide | {"num_key_value_heads": 8}
    )
    changes = {"precision": "BF16", "globalBatch": {"sequences": 256}}
    manifest = a_manifest(tmp_path, model={"config": config}, training=changes)
    question = ("-f", manifest, "--hardware", "h100x8", "--nodes", "1..16")
    rungs = json.loads(call("plan", *question, "-o", "json").stdout)["rungs"]
    assert not rungs[0]["useful"]
    assert rungs[0]["stepSeconds"] is None
    assert "does not hold a copy" in rungs[0]["reason"]
    assert rungs[-1]["stepSeconds"] > 0
    table = call("plan", *question, "--price-per-hour", "10").stdout.splitlines()
    assert table[1].split()[:4] == ["1", "-", "-", "-"]
    whole = [one for one in rungs if one["useful"]]
    assert all(after["stepSeconds"] < before["stepSeconds"] for before, after in pairwise(whole))


def test_a_batch_beyond_all_bounds_is_refused(tmp_path: Path) -> None:
    manifest = a_manifest(tmp_path, training={"globalBatch": {"tokens": 1 << 50}})
    result = call("plan", "-f", manifest)
    assert result.exit_code == CliExit.BAD_INPUT
    assert "spec.training.globalBatch" in result.stderr


def test_a_size_of_another_scale_is_explained_as_it_is_planned() -> None:
    question = ("-f", EXAMPLE, "--hardware", "l4x2", "--scale", "1..8")
    planned = json.loads(call("plan", *question, "-o", "json").stdout)["rungs"]
    assert [one["nodes"] for one in planned] == list(range(1, 9))
    what = json.loads(call("what-if", *question, "--nodes", "6", "-o", "json").stdout)
    assert what["planner"]["axes"] == {axis: planned[5]["axes"][axis] for axis in what["planner"]["axes"]}
    assert what["planner"]["stepSeconds"] == pytest.approx(planned[5]["stepSeconds"])
    result = call("plan", "-f", EXAMPLE, "--scale", "8..1")
    assert result.exit_code == CliExit.BAD_INPUT
    assert "--scale" in result.stderr


def test_documents_tell_odds_and_prices_as_the_tables_do() -> None:
    question = ("-f", EXAMPLE, "--hardware", "l4x2", "--nodes", "2", "--price-per-hour", "3")
    (planned,) = json.loads(call("plan", *question, "-o", "json").stdout)["rungs"]
    asked = json.loads(
        call("what-if", *question, "--micro-batch", str(planned["microBatch"]), "-o", "json").stdout
    )
    assert 0 <= planned["outOfMemoryProbability"] < 0.01
    price = 3 * 2 * 1e9 / planned["tokensPerSecond"] / 3600
    assert planned["pricePerBillionTokens"] == pytest.approx(price)
    assert asked["asked"]["pricePerBillionTokens"] == pytest.approx(price)
    assert asked["asked"]["flopsUtilisation"] == pytest.approx(planned["flopsUtilisation"])
    assert f"{price:,.0f}" in call("plan", *question).stdout
    plain = json.loads(call("plan", "-f", EXAMPLE, "--nodes", "2", "-o", "json").stdout)["rungs"][0]
    assert plain["pricePerBillionTokens"] is None
