"""A second try is told, and does not hide what fails twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.second_try import Outcome, main, run_tests

FAILS_ONCE = """
from pathlib import Path

def test_one():
    mark = Path(__file__).with_name("mark")
    seen = mark.exists()
    mark.touch()
    assert seen
"""


@pytest.mark.parametrize(
    ("text", "outcome", "code"),
    [
        ("def test_one(): pass", Outcome.PASSED, 0),
        (FAILS_ONCE, Outcome.FLAKY, 0),
        ("def test_one(): assert False", Outcome.FAILED, 1),
    ],
)
def test_what_failed_is_tried_once_more_and_said(
    text: str, outcome: Outcome, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    assert run_tests("it", [str(file)], tmp_path / "cache") is outcome
    assert f"== it: {outcome.value}" in capfd.readouterr().out
    (tmp_path / "mark").unlink(missing_ok=True)
    assert main([str(file)]) == code
