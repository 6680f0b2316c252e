"""The judging command: same rows in the same order, nothing read that came out, one reason for what cannot be
read."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.planner_accuracy import __main__ as command
from benchmarks.planner_accuracy.baselines import constant_utilisation, megatron_formula
from benchmarks.planner_accuracy.predict import COLUMNS, chosen, predict
from benchmarks.planner_accuracy.rates import flops_of_token
from benchmarks.planner_accuracy.rows import OUTCOMES, read_row
from benchmarks.planner_accuracy.score import Scored, kendall, out_of_memory, quantile, report
from tests.operator.test_planner_accuracy_rows import a_row

from trainingrun.planner.cost.types import Recompute
from trainingrun.planner.models.counts import active_parameters

SHARED = Path(__file__).parents[3] / "shared" / "data" / "measured_configs_calibration.csv"


def _write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, (*rows[0], *OUTCOMES))
        writer.writeheader()
        writer.writerows(rows)
    return path


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["planner_accuracy", *arguments])
    return command.main()


def test_each_row_gets_a_line_in_the_same_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [a_row(), a_row(model="unheard-of", layers="", hidden=""), a_row(micro_batch="2", grad_accum="8")]
    out = tmp_path / "out.csv"
    assert _run(monkeypatch, "--rows", str(_write(tmp_path / "rows.csv", rows)), "--out", str(out)) == 0
    with out.open(newline="") as stream:
        found = list(csv.DictReader(stream))
    assert [line["model"] for line in found] == ["llama3-8b", "unheard-of", "llama3-8b"]
    assert set(COLUMNS) <= found[0].keys()
    assert found[0]["fits"] == "yes"
    assert float(found[0]["predicted_peak_gib"]) > 0
    assert float(found[0]["predicted_step_s"]) > 0
    assert float(found[2]["predicted_peak_gib"]) > float(found[0]["predicted_peak_gib"])
    assert "hidden_size" in found[1]["error"]
    assert found[1]["predicted_peak_gib"] == found[1]["fits"] == ""


def test_outcomes_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts = []
    for name, outcome in (("blank", ""), ("full", "12345.6")):
        rows = [{**a_row(), **dict.fromkeys(OUTCOMES, outcome)}]
        out = tmp_path / f"{name}.out.csv"
        _run(monkeypatch, "--rows", str(_write(tmp_path / f"{name}.csv", rows)), "--out", str(out))
        texts.append(out.read_text())
    assert texts[0] == texts[1]


def test_the_command_needs_the_standard_library_only(tmp_path: Path) -> None:
    """As any plain Python runs it: without site-packages."""
    root = Path(__file__).parents[2]
    rows = _write(tmp_path / "rows.csv", [a_row()])
    files = ["--rows", str(rows), "--out", str(tmp_path / "out.csv")]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks.planner_accuracy", *files, "--score"],
        cwd=root, env={"PYTHONPATH": str(root / "operator")}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_no_table_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "--rows", str(tmp_path / "absent.csv")) == 2
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    assert _run(monkeypatch, "--rows", str(other)) == 2
    assert "no columns" in capsys.readouterr().err


@pytest.mark.parametrize("mark", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tables_of_spreadsheets_are_read_as_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mark: str, end: str
) -> None:
    row = a_row()
    cells = ",".join(f'"{text}"' for text in row.values())
    table = tmp_path / "rows.csv"
    table.write_bytes(f"{','.join(row)}{end}{cells},and,more{end}{end}".encode(mark))
    out = tmp_path / "out.csv"
    assert _run(monkeypatch, "--rows", str(table), "--out", str(out)) == 0
    with out.open(newline="") as stream:
        found = list(csv.DictReader(stream))
    assert [line["error"] for line in found] == [""]
    assert float(found[0]["predicted_step_s"]) == pytest.approx(predict(row).seconds, rel=1e-5)


@pytest.mark.parametrize("content", [b"", b"\xff\xfes\x00o\x00", bytes(range(256)), b"source,model\n"])
def test_a_file_that_is_no_text_or_has_no_rows_gets_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    table = tmp_path / "rows.csv"
    table.write_bytes(content)
    assert _run(monkeypatch, "--rows", str(table)) == 2
    told = capsys.readouterr().err
    assert str(table) in told
    assert told.count("\n") == 1


NUMBERS = [
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "seq_len",
    "global_batch",
    "micro_batch",
    "grad_accum",
    "gpus",
    "gpus_per_node",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "vpp",
]


@pytest.mark.parametrize("column", NUMBERS)
@pytest.mark.parametrize("text", ["-1", "0", "many", "1e400", "nan", "2.5", "1,000", "9" * 30])
def test_what_is_no_size_is_told_by_its_column(column: str, text: str) -> None:
    assert predict(a_row(**{column: text})).error.startswith(f"{column} ")


def test_more_stages_or_layers_than_anybody_has_are_refused() -> None:
    assert "stages" in predict(a_row(pp="1000000")).error
    assert "layers 99999999" in predict(a_row(layers="99999999")).error


def test_outcomes_that_are_no_numbers_are_not_scored() -> None:
    row = a_row()
    scored = Scored({**row, "step_time_s": "soon", "peak_mem_gb": "0", "tflops_per_gpu": "-3"}, predict(row))
    assert report([scored], lambda row: True).count("no rows") >= 3


def test_a_recipe_that_runs_recomputes_as_little_as_fits() -> None:
    recipe = a_row(source="NVIDIA NeMo perf summary", recompute="", tp="1", pp="1", dp="64", vpp="1", micro_batch="1",
                   grad_accum="2", seq_parallel="no")  # fmt: skip
    assert chosen(read_row(recipe))[0].layout.recompute is Recompute.NONE
    longer = {**recipe, "seq_len": "32768"}
    assert chosen(read_row(longer))[0].layout.recompute is not Recompute.NONE
    told = {**longer, "recompute": "none"}
    assert chosen(read_row(told))[0].layout.recompute is Recompute.NONE


def test_rates_follow_the_rule_of_the_source() -> None:
    bloom = a_row(source="BigScience BLOOM prequel (Megatron-DeepSpeed)", recompute="full")
    assert flops_of_token(read_row(bloom)) > flops_of_token(read_row({**bloom, "recompute": "none"}))
    tuned = read_row(a_row(source="NVIDIA NeMo perf summary", model="llama3-8b (LoRA)"))
    assert flops_of_token(tuned) == 4 * active_parameters(tuned.workload.model)


def test_kendall_counts_pairs_in_order() -> None:
    assert kendall([1, 2, 3, 4], [10, 20, 30, 40]) == 1
    assert kendall([1, 2, 3, 4], [40, 30, 20, 10]) == -1
    assert kendall([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(2 / 3)
    assert math.isnan(kendall([1, 1, 1], [1, 2, 3]))


def test_quantiles_lie_between_values() -> None:
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([1, 2, 3], 1.0) == 3


def test_out_of_memory_is_counted_by_what_was_told() -> None:
    small = a_row(
        oom="yes", gpu="V100-SXM2-16GB", tp="1", pp="1", dp="1", gpus="1", zero_stage_or_fsdp="none(ddp)"
    )
    roomy = a_row(oom="no")
    scored = [Scored(row, predict(row)) for row in (small, roomy)]
    whole = out_of_memory(scored, lambda row: True)[0]
    assert "out of memory: 1 told, 0 called fitting" in whole
    assert "fitting: 1 told, 0 called out of memory" in whole


def test_the_report_says_how_far_off_predictions_are() -> None:
    row = a_row()
    prediction = predict(row)
    measured = {**row, "peak_mem_gb": str(prediction.peak * 1.25), "step_time_s": str(prediction.seconds)}
    text = report([Scored(measured, prediction)], lambda row: True)
    assert "MAPE  20.00 %" in text
    assert "MAPE   0.00 %" in text


def test_baselines_are_what_they_claim() -> None:
    rows = [a_row(step_time_s="2.0"), a_row(step_time_s="4.0", global_batch="256", grad_accum="32")]
    constant = constant_utilisation(rows)
    assert constant[id(rows[1])] == pytest.approx(2 * constant[id(rows[0])])
    assert constant[id(rows[0])] == pytest.approx(2.0)
    assert megatron_formula(a_row()) < predict(a_row(), corrected=False).peak


@pytest.mark.skipif(not SHARED.exists(), reason="the table of measurements is not here")
def test_published_memory_is_predicted_within_the_bars() -> None:
    with SHARED.open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["peak_mem_gb"] and row["quality"] == "good"]
    errors = [abs(predict(row).peak / float(row["peak_mem_gb"]) - 1) for row in rows]
    assert sum(errors) / len(errors) < 0.05
