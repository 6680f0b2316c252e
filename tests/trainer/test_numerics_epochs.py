"""Whole epochs of real ranks with other optimizers, precisions and overrides: pause, resume, finish, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.trainer.epochs import Ended, Folder, a_spec

from trainer.checkpoint import manifest
from trainingrun.protocol.messages import Progress
from trainingrun.protocol.records import Restore, RestoreSource

STEPS = 6


def a_run(folder: Path, precision: str, optimizer: str, **overrides: Any) -> Folder:
    spec = a_spec(folder, steps=STEPS, precision=precision)
    spec["training"]["optimizer"] |= {"name": optimizer}
    if optimizer == "AdamW8bit":
        spec["model"]["config"] |= {"head_dim": 128, "intermediate_size": 512}  # tensor 2 leaves blocks whole
    spec["training"]["schedule"] |= {"name": "WSD", "decayPermille": 500}
    spec["training"]["overrides"] = overrides
    return Folder(folder, spec)


def done(ended: Ended) -> Progress:
    assert not ended.errors, ended.errors
    result = ended.results[0]
    assert result is not None
    assert (result.outcome, result.step) == ("Done", STEPS)
    assert result.progress is not None
    return result.progress


def from_memory(run: Folder, epoch: int, step: int, layout: tuple[int, int, int]) -> dict[str, Any]:
    restore = Restore(RestoreSource.MEMORY, step, epoch, layout=layout, holders=(0,))
    return {"restore": restore, "restore_files": run.held(epoch, step, nodes=1)}


def exported(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


@pytest.mark.parametrize("optimizer", ["AdamW8bit", "Lion", "Muon", "Adafactor"])
def test_a_run_that_changes_its_layout_meets_the_uninterrupted_one(tmp_path: Path, optimizer: str) -> None:
    """Through memory and through a durable checkpoint, with an average and a z-loss."""
    settings: dict[str, Any] = {"emaDecay": 0.9, "zLoss": 0.01}
    whole = a_run(tmp_path / "whole", "FP64", optimizer, **settings)
    expected = done(whole.run(1))
    run = a_run(tmp_path / "cut", "FP64", optimizer, **settings)
    assert not run.run(1, tensor=2, pause_after=2).errors
    run.spec["checkpoint"]["durable"]["intervalSteps"] = 2
    second = run.run(2, shard=2, pause_after=4, **from_memory(run, 1, 2, (1, 1, 2)))
    assert not second.errors
    saved = manifest.newest(tmp_path / "cut" / "checkpoints")
    assert saved is not None
    assert saved.step == 4
    durable = Restore(RestoreSource.DURABLE, saved.step, 2, saved.name)
    progress = done(run.run(3, pipeline=2, restore=durable))
    assert progress.loss == pytest.approx(expected.loss, abs=1e-9)
    ours, theirs = exported(tmp_path / "cut"), exported(tmp_path / "whole")
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 1e-8


@pytest.mark.parametrize("precision", ["BF16", "FP16"])
def test_half_precision_resumes_bit_for_bit_at_the_same_layout(tmp_path: Path, precision: str) -> None:
    whole = a_run(tmp_path / "whole", precision, "AdamW", emaDecay=0.5)
    expected = done(whole.run(1, replicate=2))
    run = a_run(tmp_path / "cut", precision, "AdamW", emaDecay=0.5)
    assert not run.run(1, replicate=2, pause_after=3).errors
    progress = done(run.run(2, replicate=2, **from_memory(run, 1, 3, (1, 1, 1))))
    assert progress.loss == expected.loss
    ours, theirs = exported(tmp_path / "cut"), exported(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    dtype = torch.bfloat16 if precision == "BF16" else torch.float16
    assert {tensor.dtype for tensor in ours.values()} == {dtype}


def test_a_checkpoint_of_half_precision_has_the_masters_and_goes_on_at_another_layout(tmp_path: Path) -> None:
    run = a_run(tmp_path, "BF16", "AdamW")
    run.spec["checkpoint"]["durable"]["intervalSteps"] = 3
    assert not run.run(1, shard=2, pause_after=3).errors
    saved = manifest.newest(tmp_path / "checkpoints")
    assert saved is not None
    items = manifest.read_manifest(tmp_path / "checkpoints", saved.name).items
    assert {item.dtype for item in items} == {"float32"}
    durable = Restore(RestoreSource.DURABLE, saved.step, 1, saved.name)
    assert done(run.run(2, tensor=2, restore=durable)).step == STEPS


def test_the_average_is_exported_in_place_of_the_weights(tmp_path: Path) -> None:
    """With a decay of nearly 1 it is still the initial weights."""
    done(a_run(tmp_path / "averaged", "FP64", "AdamW", emaDecay=0.9999999).run(1))
    done(a_run(tmp_path / "plain", "FP64", "AdamW").run(1))
    averaged, plain = exported(tmp_path / "averaged"), exported(tmp_path / "plain")
    norm = averaged["model.norm.weight"]
    assert torch.allclose(norm, torch.ones_like(norm), atol=1e-6)
    assert float((plain["model.norm.weight"] - 1.0).abs().max()) > 1e-4


def test_the_log_says_what_an_epoch_computes_with_and_what_its_steps_had(tmp_path: Path) -> None:
    run = a_run(tmp_path, "FP16", "Lion", zLoss=0.01, attention="Eager")
    done(run.run(1))
    (path,) = (tmp_path / "node-0" / "logs").glob("metrics-e0001.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (numerics,) = [line["numerics"] for line in lines if "numerics" in line]
    assert numerics == {
        "precision": "FP16",
        "optimizer": "Lion",
        "schedule": "WSD",
        "attention": "Eager",
        "activationCheckpointing": "None",
        "compile": False,
        "zLoss": 0.01,
        "emaDecay": None,
    }
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == STEPS
    assert all(line["zLoss"] > 0 for line in steps)
    scale, waiting = 65536.0, None  # Lion at this rate may overflow now and then
    for line in steps:
        assert waiting is None or line["learningRate"] == waiting
        scale = scale / 2 if line["overflowed"] else scale
        assert line["lossScale"] == scale
        waiting = line["learningRate"] if line["overflowed"] else None
