"""Whether a rung of a plan can train a configuration: the last check before a process group is made."""

from __future__ import annotations

from trainer.config.run import TrainerConfig
from trainer.errors import ConfigError
from trainingrun.protocol.records import Rung


def check_rung(config: TrainerConfig, rung: Rung) -> None:
    """Whether `rung` can train `config`: the model divides, and the batch arithmetic closes."""
    model = config.model
    for field, size in (
        ("num_attention_heads", model.attention_heads),
        ("num_key_value_heads", model.key_value_heads),
        ("intermediate_size", model.intermediate_size),
    ):
        _divides("tensor", rung.tensor, f"spec.model.config.{field}", size)
    _divides("pipeline", rung.pipeline, "spec.model.config.num_hidden_layers", model.layers)
    if rung.pipeline > 1 and model.tied_embeddings:
        raise ConfigError(
            "spec.parallelism.axes.pipeline",
            rung.pipeline,
            "tied embeddings would live on the first and the last stage",
            "set pipeline to 1, or spec.model.config.tie_word_embeddings to false",
        )
    if rung.pipeline > rung.accumulation:
        raise ConfigError(
            "rung.accumulation",
            rung.accumulation,
            f"a pipeline of {rung.pipeline} stages needs at least as many micro-batches",
            "use a smaller micro-batch, a larger global batch or fewer stages",
        )
    sequences = rung.data * rung.micro_batch * rung.accumulation - rung.padding_sequences
    if sequences != config.training.global_batch:
        raise ConfigError(
            "spec.training.globalBatch",
            config.training.global_batch,
            f"data {rung.data} x micro-batch {rung.micro_batch} x accumulation {rung.accumulation}"
            f" - padding {rung.padding_sequences} = {sequences} sequences",
            "plan again: the rung does not belong to this batch",
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
