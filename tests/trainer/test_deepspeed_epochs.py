"""Whole epochs of the engine DeepSpeed: killed, restored at the same size bit by bit, exported; never resized."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.trainer import test_weights
from tests.trainer.deepspeed_worlds import preload
from tests.trainer.epochs import Ended, Folder, a_spec
from transformers import AutoModelForCausalLM

from trainer.checkpoint import manifest
from trainer.job import Result
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import Progress
from trainingrun.protocol.records import Restore, RestoreSource

preload()
STEPS = 6


@dataclass(frozen=True)
class Way:
    stage: int
    precision: str = "FP32"
    offload: str = "None"

    @property
    def axes(self) -> dict[str, Any]:
        return {"shard": 2, "engine": "DeepSpeed", "zero_stage": self.stage}


WAYS = [Way(1, "BF16"), Way(2, offload="Optimizer"), Way(3)]


def a_run(folder: Path, way: Way) -> Folder:
    spec = a_spec(folder, steps=STEPS, precision=way.precision)
    block = {"zeroStage": way.stage, "offload": way.offload}
    spec["parallelism"] |= {"engine": "DeepSpeed", "deepspeed": block}
    return Folder(folder, spec)


def done(ended: Ended) -> Result:
    assert not ended.errors, ended.errors
    result = ended.results[0]
    assert result is not None
    assert (result.outcome, result.step) == ("Done", STEPS)
    return result


def loss_of(result: Result) -> float:
    assert result.progress is not None
    return result.progress.loss


def exported(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def from_memory(run: Folder, epoch: int, step: int) -> dict[str, Any]:
    restore = Restore(RestoreSource.MEMORY, step, epoch, layout=(1, 2, 1), holders=(0, 1))
    return {"restore": restore, "restore_files": run.held(epoch, step, nodes=2)}


def from_durable(run: Folder, epoch: int) -> Restore:
    saved = manifest.newest(run.folder / "checkpoints")
    assert saved is not None
    return Restore(RestoreSource.DURABLE, saved.step, epoch, saved.name)


def kill_at(step: int) -> Any:
    def when(progress: Progress, processes: list[Any]) -> None:
        if progress.step >= step:
            os.kill(processes[0].pid, signal.SIGKILL)

    return when


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_run_that_was_stopped_and_killed_meets_the_uninterrupted_one_bit_by_bit(
    tmp_path: Path, way: Way
) -> None:
    """Through memory on two nodes after a pause, then through a durable checkpoint after a kill."""
    whole = a_run(tmp_path / "whole", way)
    expected = done(whole.run(1, **way.axes))
    run = a_run(tmp_path / "cut", way)
    paused = run.run(1, nodes=2, pause_after=2, **way.axes)
    assert not paused.errors, paused.errors
    run.spec["checkpoint"]["durable"]["intervalSteps"] = 1  # each save waits for the one before
    killed = run.run(2, nodes=2, when=kill_at(5), **from_memory(run, 1, 2), **way.axes)
    assert -signal.SIGKILL in killed.exit_codes
    point = from_durable(run, 2)
    assert point.step >= 3
    finished = done(run.run(3, nodes=2, restore=point, **way.axes))
    assert loss_of(finished) == loss_of(expected)
    assert same(exported(tmp_path / "cut"), exported(tmp_path / "whole"))


def test_the_export_is_a_transformers_model_that_was_trained_as_the_engine_native_trains_it(
    tmp_path: Path,
) -> None:
    run = a_run(tmp_path / "zero", Way(3))
    result = done(run.run(1, **Way(3).axes))
    native = Folder(tmp_path / "native", a_spec(tmp_path / "native", steps=STEPS, precision="FP32"))
    reference = done(native.run(1, shard=2))
    assert loss_of(result) == pytest.approx(loss_of(reference), abs=5e-6)
    ours, theirs = exported(tmp_path / "zero"), exported(tmp_path / "native")
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 5e-5
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "zero" / "model", local_files_only=True)
    assert torch.equal(model.model.norm.weight, ours["model.norm.weight"])


@pytest.mark.parametrize("stage", [2, 3])
def test_what_is_imported_is_what_is_exported(tmp_path: Path, stage: int) -> None:
    """GPT-2 has matrices that the state keeps in another shape, and a tied head."""
    config = test_weights.config_of("gpt2")
    model = test_weights.a_model(config)
    test_weights.put(model, tmp_path / "source")
    run = test_weights.a_run(tmp_path, config, tmp_path / "source", **test_weights.STILL)
    run.spec["parallelism"] |= {"engine": "DeepSpeed", "deepspeed": {"zeroStage": stage, "offload": "None"}}
    ended = run.run(1, **Way(stage).axes)
    assert not ended.errors, ended.errors
    ours, theirs = exported(tmp_path), dict(model.named_parameters())
    assert ours.keys() == theirs.keys()
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


def test_another_size_stage_or_engine_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    way = Way(2)
    run = a_run(tmp_path, way)
    run.spec["checkpoint"]["durable"]["intervalSteps"] = 2
    assert not run.run(1, pause_after=2, **way.axes).errors
    memory, durable = from_memory(run, 1, 2), {"restore": from_durable(run, 1)}
    larger = way.axes | {"shard": 3}
    for epoch, (point, axes) in enumerate(((memory, larger), (durable, larger)), start=2):
        refused(run.run(epoch, **point, **axes), "spec.scale.maxNodes", "2 processes", "keeps its size")
    run.spec["parallelism"]["deepspeed"]["zeroStage"] = 3
    refused(run.run(4, **durable, **Way(3).axes), "spec.parallelism.deepspeed.zeroStage", "set it to 2")
    run.spec["parallelism"] |= {"engine": "Native", "deepspeed": None}
    refused(run.run(5, **durable, shard=2), "spec.parallelism.engine", "was made by the engine DeepSpeed")


def refused(ended: Ended, *words: str) -> None:
    error = ended.errors[0]
    assert error.exit_code == ExitCode.BAD_CONFIGURATION
    assert all(word in error.message for word in words), error.message
    assert ended.damaged == "", "nothing is wrong with the checkpoint"


def test_a_loss_that_is_not_finite_ends_the_ranks_before_a_weight_is_changed(tmp_path: Path) -> None:
    run = a_run(tmp_path, Way(2))
    run.spec["training"]["optimizer"] |= {"learningRate": 1e30, "maxGradNorm": None}
    run.spec["training"]["schedule"] |= {"warmupSteps": 0}
    ended = run.run(1, **Way(2).axes)
    assert "not finite" in ended.errors[0].message
    assert ended.progress is not None
    assert ended.progress.step < STEPS
