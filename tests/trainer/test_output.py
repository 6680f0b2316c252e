"""An export replaces an earlier export and nothing else."""

from pathlib import Path

import pytest

from trainer.errors import ConfigError
from trainer.output import SOURCE_FILE, check_replaceable


def test_no_folder_an_empty_one_and_an_earlier_export_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / SOURCE_FILE).write_text("{}")
    for name in ("none", "empty", "export"):
        check_replaceable(tmp_path / name)


def test_what_is_no_export_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for target in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(ConfigError, match=r"spec\.output\.uri.*name another folder"):
            check_replaceable(target)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
