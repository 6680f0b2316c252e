"""Pause, resize and restore with schedules, axes and families that cut the state in other ways than Llama on tensor and
data ranks: the end is the uninterrupted run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.trainer.epochs import Folder, a_spec

from trainer.checkpoint import manifest
from trainingrun.protocol.records import Restore, RestoreSource

STEPS = 6
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "gpt2": {"num_key_value_heads": None, "tie_word_embeddings": None}
    | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}


def a_spec_of(kind: str, folder: Path) -> dict[str, Any]:
    spec = a_spec(folder, steps=STEPS)
    config = spec["model"]["config"] | {"model_type": kind, **MODELS[kind]}
    spec["model"]["config"] = {key: value for key, value in config.items() if value is not None}
    return spec


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_a_run_over_schedules_and_context_meets_the_uninterrupted_one(kind: str, tmp_path: Path) -> None:
    """Memory of both ends of a pipeline to tensor and context ranks, and from there by a checkpoint to a pipeline."""
    alone = Folder(tmp_path / "alone", a_spec_of(kind, tmp_path / "alone"))
    expected = alone.run(1)
    assert not expected.errors, expected.errors
    run = Folder(tmp_path / "moved", a_spec_of(kind, tmp_path / "moved"))
    first = run.run(1, pipeline=2, schedule="ZBV", pause_after=2)
    assert not first.errors, first.errors

    run.spec["checkpoint"]["durable"]["intervalSteps"] = 4
    memory = Restore(RestoreSource.MEMORY, step=2, epoch=1, layout=(2, 1, 1), holders=(0,))
    held = run.held(1, 2, nodes=1)
    second = run.run(2, tensor=2, context=2, restore=memory, restore_files=held, pause_after=4)
    assert not second.errors, second.errors
    saved = manifest.newest(tmp_path / "moved" / "checkpoints")
    assert saved is not None
    assert (saved.step, saved.epoch) == (4, 2)

    durable = Restore(RestoreSource.DURABLE, step=4, epoch=2, manifest=saved.name)
    last = run.run(3, pipeline=2, shard=2, schedule="Interleaved1F1B", restore=durable)
    assert not last.errors, last.errors
    assert last.results[0] is not None
    assert last.results[0].step == STEPS
    assert last.progress is not None
    assert expected.progress is not None
    assert last.progress.loss == pytest.approx(expected.progress.loss, abs=1e-9)
    ours, theirs = (
        load_file(tmp_path / where / "model" / "model.safetensors") for where in ("moved", "alone")
    )
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 1e-8
