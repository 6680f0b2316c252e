"""Every example in the repository is accepted and planned as it stands."""

from pathlib import Path

import pytest

from trainingrun.api.load import parse, read_manifest, resolve
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.search import plan

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.yaml") if "kind: TrainingRun" in path.read_text())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_accepted_and_planned(path: Path, tmp_path: Path) -> None:
    spec = resolve(parse(read_manifest(path), tmp_path), tmp_path)
    assert all(rung.rung.useful for rung in plan(*planner_inputs(spec)).rungs)
