"""Data or a tokenizer that changed between two epochs are refused: the position in the order would mean nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trainer.epochs import Folder, a_spec

from trainer.checkpoint import manifest
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.records import Restore, RestoreSource


@pytest.mark.parametrize("source", [RestoreSource.MEMORY, RestoreSource.DURABLE])
def test_a_run_never_goes_on_with_other_data(source: RestoreSource, tmp_path: Path) -> None:
    spec = a_spec(tmp_path, steps=6)
    spec["checkpoint"]["durable"]["intervalSteps"] = 3
    run = Folder(tmp_path, spec)
    first = run.run(1, pause_after=3)
    assert not first.errors, first.errors
    saved = manifest.newest(tmp_path / "checkpoints")
    assert saved is not None
    restore = {
        RestoreSource.MEMORY: Restore(source, step=3, epoch=1, layout=(1, 1, 1), holders=(0,)),
        RestoreSource.DURABLE: Restore(source, step=3, epoch=1, manifest=saved.name),
    }[source]
    files = run.held(1, 3, nodes=1) if source is RestoreSource.MEMORY else ()

    text = tmp_path / "text" / "00.txt"
    before = text.read_text()
    text.write_text("other words entirely " * 20)
    changed = Folder(tmp_path, spec).run(2, restore=restore, restore_files=files)
    assert changed.exit_codes == [ExitCode.BAD_CONFIGURATION]
    assert "spec.data.sources" in changed.errors[0].message
    assert "not the data that the run was trained on until step 3" in changed.errors[0].message

    text.write_text(before)
    back = Folder(tmp_path, spec).run(3, restore=restore, restore_files=files)
    assert not back.errors, back.errors
    assert back.results[0] is not None
    assert back.results[0].step == 6
