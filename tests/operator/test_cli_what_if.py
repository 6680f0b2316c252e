"""`trainingrun what-if` as a user meets it, and the bars that it shares with `explain`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.operator.planner_builders import a_model, a_node, a_training, machines
from typer.testing import CliRunner, Result

from trainingrun.api.errors import CliExit
from trainingrun.cli import bills
from trainingrun.cli.main import app
from trainingrun.planner.search import plan
from trainingrun.planner.weighing import Weighed, weigh

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "golden" / "run.yaml"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def weighed(memory: int) -> Weighed:
    node = a_node(1, 1 << 30)
    rung = plan(a_model(), a_training(), machines(node, 1, 1)).rungs[0].rung
    return weigh(a_model(), a_training(), a_node(1, memory), rung)


def test_a_pinned_configuration_stands_beside_the_planners() -> None:
    result = call("what-if", "-f", EXAMPLE, "--nodes", "2", "--tensor", "2", "--micro-batch", "8")
    assert result.exit_code == CliExit.OK
    text = result.stdout
    assert text.startswith(
        "pretrain-stdlib on 2 nodes: tensor 2 x shard 2 x pipeline 1 x replicate 1 = 4 processes\n"
    )
    assert "Fits, and runs out of memory with a probability of" in text
    assert "slower than the planner's own choice" in text
    assert "YOURS" in text
    assert "PLANNER'S" in text
    assert "utilisation (of what the cores reach)" in text
    assert "\x1b[" not in text


def test_data_formats_hold_both_with_the_same_fields() -> None:
    document = json.loads(call("what-if", "-f", EXAMPLE, "--recompute", "Full", "-o", "json").stdout)
    assert document["asked"].keys() == document["planner"].keys()
    assert document["asked"]["activationCheckpointing"] == "Full"
    assert document["asked"]["memory"]["total"] <= document["planner"]["memory"]["total"]
    assert document["asked"]["fits"] is True
    assert 0 <= document["asked"]["outOfMemoryProbability"] <= 1


def test_nothing_pinned_is_said_and_is_the_planners_own() -> None:
    result = call("what-if", "-f", EXAMPLE)
    assert "nothing is pinned" in result.stderr
    assert "it is the planner's own choice" in result.stdout


def test_what_cannot_be_is_bad_input_with_the_equation() -> None:
    result = call("what-if", "-f", EXAMPLE, "--nodes", "2", "--shard", "3", "--replicate", "1")
    assert result.exit_code == CliExit.BAD_INPUT
    assert "shard 3 x replicate 1 = 3 data ranks, but 2 nodes x 2 processes" in result.stderr
    assert "nearest that fits: shard 4 x replicate 1" in result.stderr
    assert result.stdout == ""


def test_what_does_not_fit_is_an_answer_and_not_an_error(tmp_path: Path) -> None:
    manifest = tmp_path / "run.yaml"
    manifest.write_text(EXAMPLE.read_text().replace("memory: 4Gi", "memory: 1300Mi"))
    result = call("what-if", "-f", manifest, "--nodes", "1", "--micro-batch", "16", "--price-per-hour", "2")
    assert result.exit_code == CliExit.OK
    assert "Does not fit: " in result.stdout
    assert "too much by" in result.stdout
    assert "cost of 1B tokens" in result.stdout


def test_the_stacked_bar_is_as_wide_as_the_memory_and_what_is_beyond_stands_behind_it() -> None:
    roomy = bills.stacked(weighed(1 << 26), width=40)
    assert len(roomy) == 42
    assert roomy.startswith("|")
    assert roomy.endswith(".|")
    tight = bills.stacked(weighed(1 << 20), width=40)
    assert "|" in tight[1:41] + tight[41]
    assert len(tight) > 42


def test_parts_add_up_to_the_total() -> None:
    one = weighed(1 << 26)
    shown = sum(getattr(one.memory, part.name) for part in bills.PARTS)
    assert shown == one.memory.total
    assert (
        len({part.letter for part in bills.PARTS} | {bills.KEPT_FREE, bills.UNUSED}) == len(bills.PARTS) + 2
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = bills.stacked(weighed(1 << 26))
    assert "\x1b[" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    plain = bills.stacked(weighed(1 << 26))
    assert "\x1b[" not in plain
    assert _without_colour(coloured) == plain


def _without_colour(text: str) -> Any:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_where_the_planner_has_nothing_a_configuration_is_weighed_all_the_same(tmp_path: Path) -> None:
    manifest = tmp_path / "run.yaml"
    manifest.write_text(EXAMPLE.read_text().replace("memory: 4Gi", "memory: 1000Mi"))
    assert call("what-if", "-f", manifest).exit_code == CliExit.NOTHING_FITS
    result = call("what-if", "-f", manifest, "--micro-batch", "4")
    assert result.exit_code == CliExit.OK
    assert "the planner finds no plan of its own: spec.resources.perNode.memory" in result.stderr
    assert "Does not fit" in result.stdout
    document = json.loads(call("what-if", "-f", manifest, "--micro-batch", "4", "-o", "json").stdout)
    assert document["planner"] is None


@pytest.mark.parametrize(
    ("given", "told", "fix"),
    [
        (["--replicate", "3"], "replicate 3 does not divide 2 nodes x 2 processes", "use --replicate 4"),
        (["--recompute", "full"], "full is not one of: None, Selective, Full", "use Full"),
        (["--schedule", "gpipe"], "gpipe is not one of: 1F1B, Interleaved1F1B, ZBV", "use one of them"),
        (["--tensor", "3"], "tensor 3 does not divide 4 attention heads (4 / 3 = 1.33)", "use --tensor 2"),
        (["--pipeline", "3"], "pipeline 3 does not divide 4 layers (4 / 3 = 1.33)", "use --pipeline 4"),
        (["--nodes", "2..4"], "'2..4' is not a number of nodes", "use one number from 1 to 4096"),
        (["--nodes", "0"], "'0' is not a number of nodes", "use one number from 1 to 4096"),
        (["--price-per-hour", "inf"], "it is not a finite number", "use the price of one node"),
    ],
)
def test_what_cannot_be_is_told_with_what_to_use_instead(given: list[str], told: str, fix: str) -> None:
    result = call("what-if", "-f", EXAMPLE, *([] if "--nodes" in given else ["--nodes", "2"]), *given)
    assert result.exit_code == CliExit.BAD_INPUT
    assert told in result.stderr
    assert f"hint: {fix}" in result.stderr
    assert result.stdout == ""


def test_the_nearest_pipeline_is_one_that_the_model_has_layers_for() -> None:
    result = call("what-if", "-f", EXAMPLE, "--nodes", "3", "--pipeline", "4")
    assert result.exit_code == CliExit.BAD_INPUT
    assert "which do not divide 3 nodes x 2 processes = 6" in result.stderr
    assert "nearest that fits: pipeline 2" in result.stderr


def test_a_size_that_the_path_has_no_use_for_stands_beside_a_plan_of_that_size_alone(tmp_path: Path) -> None:
    manifest = tmp_path / "run.yaml"
    text = EXAMPLE.read_text().replace("{minNodes: 1, maxNodes: 2}", "{minNodes: 1, maxNodes: 32}")
    manifest.write_text(text.replace("globalBatch: {sequences: 32}", "globalBatch: {sequences: 12}"))
    result = call("what-if", "-f", manifest, "--nodes", "5", "-o", "json")
    assert result.exit_code == CliExit.OK
    assert "the run's path has no use for this size" in result.stderr
    assert "it is planned alone" in result.stderr
