"""Whether a rung of a plan can train a configuration: the last check before a process group is made."""

from __future__ import annotations

from trainer.config.engine import DEEPSPEED, STAGES
from trainer.config.run import TrainerConfig
from trainer.errors import ConfigError
from trainingrun.protocol import eight_bits
from trainingrun.protocol.families import head_dim
from trainingrun.protocol.records import STAGES_PER_RANK, Rung


def check_rung(config: TrainerConfig, rung: Rung) -> None:
    """Whether `rung` can train `config`: the model divides, and the batch arithmetic closes."""
    _check_engine(config, rung)
    model = config.model
    for field, size in (
        ("num_attention_heads", model.attention_heads),
        ("num_key_value_heads", model.key_value_heads),
        ("intermediate_size", model.intermediate_size),
    ):
        _divides("tensor", rung.tensor, f"spec.model.config.{field}", size)
    _check_stages(rung, model.layers)
    _divides("context", rung.context, "spec.training.sequenceLength", config.training.sequence_length)
    if rung.pipeline > rung.accumulation:
        raise ConfigError(
            "rung.accumulation",
            rung.accumulation,
            f"a pipeline of {rung.pipeline} stages needs at least as many micro-batches",
            "use a smaller micro-batch, a larger global batch or fewer stages",
        )
    if rung.sequence_parallel and config.training.sequence_length % (rung.context * rung.tensor):
        raise ConfigError(
            "spec.parallelism.sequenceParallel",
            True,
            f"context {rung.context} x tensor {rung.tensor} does not divide spec.training.sequenceLength = "
            f"{config.training.sequence_length}",
            "set it to false, or use a multiple of the product",
        )
    _check_numerics(config, rung)
    sequences = rung.data * rung.micro_batch * rung.accumulation - rung.padding_sequences
    if sequences != config.training.global_batch:
        raise ConfigError(
            "spec.training.globalBatch",
            config.training.global_batch,
            f"data {rung.data} x micro-batch {rung.micro_batch} x accumulation {rung.accumulation}"
            f" - padding {rung.padding_sequences} = {sequences} sequences",
            "plan again: the rung does not belong to this batch",
        )


def _check_engine(config: TrainerConfig, rung: Rung) -> None:
    engine = config.engine
    if rung.engine != engine.name:
        raise ConfigError(
            "spec.parallelism.engine", engine.name, f"the plan is one for {rung.engine}", "plan again"
        )
    if engine.name != DEEPSPEED:
        return
    if rung.zero_stage not in (STAGES if engine.zero_stage is None else (engine.zero_stage,)):
        problem = f"the plan has stage {rung.zero_stage}"
        raise ConfigError("spec.parallelism.deepspeed.zeroStage", engine.zero_stage, problem, "plan again")
    if rung.shard != rung.world:
        problem = f"the plan has {rung.world} ranks, of which {rung.shard} share the state: ZeRO cuts it by all of them"
        raise ConfigError("spec.parallelism.engine", engine.name, problem, "plan again")


def _check_numerics(config: TrainerConfig, rung: Rung) -> None:
    """What would not be exact, or does not exist, under an axis of this rung."""
    training = config.training
    if training.precision in ("BF16", "FP16") and rung.pipeline > 1 and rung.schedule == "ZBV":
        raise ConfigError(
            "spec.parallelism.pipelineSchedule",
            rung.schedule,
            f"it adds up the gradients of {training.precision} weights in {training.precision}, not in FP32",
            "use 1F1B or Interleaved1F1B, or spec.training.precision FP32",
        )
    if training.overrides.attention == "Eager" and rung.context > 1:
        raise ConfigError(
            "spec.training.overrides.attention",
            "Eager",
            f"context {rung.context} gathers keys and values for Sdpa",
            "use Sdpa, or spec.parallelism.axes.context 1",
        )
    if training.optimizer.name == eight_bits.NAME:
        _check_blocks(config, rung.tensor)
    apart = {"tensor": rung.tensor, "context": rung.context, "pipeline": rung.pipeline}
    for axis, degree in apart.items():
        if training.overrides.compile and degree > 1:
            raise ConfigError(
                "spec.training.overrides.compile",
                True,
                f"{axis} {degree}: layers that talk to other ranks are not compiled",
                f"remove it, or use {axis} 1",
            )


def _check_blocks(config: TrainerConfig, tensor: int) -> None:
    """A block of moments has one scale, so no two ranks may have parts of it."""
    model = config.model
    given = model.transformers_config
    rows = eight_bits.rows_cut_by_tensor(
        given["model_type"],
        hidden=model.hidden_size,
        attention=model.attention_heads * head_dim(given),
        intermediate=model.intermediate_size,
    )
    for row in rows:
        if not row.whole_under(tensor):
            nearest = max(
                degree
                for degree in range(1, tensor)
                if model.key_value_heads % degree == model.intermediate_size % degree == 0
                and all(one.whole_under(degree) for one in rows)
            )
            raise ConfigError(
                "spec.parallelism.axes.tensor",
                tensor,
                row.problem(tensor),
                f"the nearest that fits is tensor {nearest}; spec.training.optimizer.name AdamW fits any",
            )


def _check_stages(rung: Rung, layers: int) -> None:
    """Every stage has the same number of layers, and the schedule's rounds come out even."""
    if rung.schedule not in STAGES_PER_RANK:
        raise ConfigError(
            "rung.schedule", rung.schedule, "not a schedule", f"use one of {', '.join(STAGES_PER_RANK)}"
        )
    each = rung.stages // rung.pipeline
    if layers % rung.stages:
        fits = [d for d in range(1, rung.pipeline + 1) if d == 1 or layers % (d * each) == 0]
        turns = "" if each == 1 else f" x {each} stages a rank ({rung.schedule})"
        raise ConfigError(
            "spec.parallelism.axes.pipeline",
            rung.pipeline,
            f"pipeline {rung.pipeline}{turns} = {rung.stages} stages do not divide "
            f"spec.model.config.num_hidden_layers = {layers} ({layers} / {rung.stages} = "
            f"{layers / rung.stages:.2f})",
            f"the nearest that fits is pipeline {max(fits)}",
        )
    if rung.pipeline > 1 and rung.schedule == "Interleaved1F1B" and rung.accumulation % rung.pipeline:
        raise ConfigError(
            "rung.accumulation",
            rung.accumulation,
            f"Interleaved1F1B takes the micro-batches in rounds of {rung.pipeline}, one for each rank",
            f"use {-(-rung.accumulation // rung.pipeline) * rung.pipeline}, or the schedule 1F1B",
        )


def _divides(axis: str, degree: int, field: str, size: int) -> None:
    if size % degree:
        nearest = max(d for d in range(1, degree + 1) if size % d == 0)
        raise ConfigError(
            f"spec.parallelism.axes.{axis}",
            degree,
            f"does not divide {field} = {size} ({size} / {degree} = {size / degree:.2f})",
            f"the nearest that fits is {axis} {nearest}",
        )
