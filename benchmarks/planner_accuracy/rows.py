"""A row of a table of measurements becomes a `Workload`. Reads what was configured, never what came out.

Columns that are empty are filled from names (`architectures`, `megatron`), from the source's habits (`sources`) or
from the other columns; what was filled in by assumption is listed in `Workload.assumed`. A row that does not say
enough raises RowError.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.planner_accuracy.cells import Row, RowError, adapter_of, gpu_name, whole
from benchmarks.planner_accuracy.row_layouts import layout_of
from benchmarks.planner_accuracy.row_models import model_of, numerics_of, test_of
from benchmarks.planner_accuracy.sources import Source, source_of
from trainingrun.planner.cost.frameworks import framework
from trainingrun.planner.cost.types import Workload
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware.machine import machine

__all__ = ["OUTCOMES", "Reading", "Row", "RowError", "read_row"]

OUTCOMES = (
    "tflops_per_gpu",
    "mfu_pct",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "peak_mem_gb",
    "oom",
    "notes",
    "quality",
)


@dataclass(frozen=True)
class Reading:
    """`workload`, and what the source means by its figures."""

    workload: Workload
    source: Source
    adapter: str = ""  # "", "LoRA", "QLoRA", "Adapter", "SFT"

    @property
    def complete(self) -> bool:
        return not self.workload.assumed

    @property
    def timed(self) -> Workload:
        """What its times are of: sequences of the usual length."""
        if self.source.length == 1.0:
            return self.workload
        length = max(1, round(self.workload.sequence_length * self.source.length))
        return replace(self.workload, sequence_length=length)


def read_row(row: Row) -> Reading:
    """Raises RowError."""
    row = {key: (value or "").strip() for key, value in row.items() if key not in OUTCOMES}
    source, known = source_of(row.get("source", ""))
    if source.refused:
        raise RowError(source.refused)
    assumed = [] if known else ["source"]
    if "dist-opt" in row.get("zero_stage_or_fsdp", "") and source.framework == "transformers":
        source = replace(source, framework="megatron-2023", gradient_bytes=4, dropout=True)
    test = test_of(row) if source.framework == "megatron" and "ci" in row.get("source", "").lower() else None
    model = model_of(row, test, assumed)
    sequence = whole(row, "seq_len")
    if sequence is None:
        sequence = source.sequence
        assumed.append("seq_len")
    if source.recompute == "with sequence parallelism":
        model = replace(model, rotary=True)  # its positions are rotated, or longer sequences had not fitted
    elif not model.rotary and model.max_position_embeddings < sequence:
        model = replace(model, max_position_embeddings=sequence)
    adapter = adapter_of(row["model"])
    numerics = numerics_of(row, source, adapter, model)
    layout, batch = layout_of(row, source, model, test, assumed)
    kind = framework(source.framework, source.spends)
    if test is not None:
        kind = test.framework(kind)
        if row["model"].endswith("_1node"):
            kind = replace(kind, times="megatron-one-node")
    elif "_cef" in row.get("source_ref", ""):  # cross-entropy fusion, in Megatron's own way
        own = {"memory_fused_logit": 6.0, "memory_head_gradient": 2.0}
        kind = replace(kind, fused_loss=True, coefficients=kind.coefficients | own)
    elif source.framework == "megatron-deepspeed" and row.get("seq_parallel") == "yes":
        kind = replace(kind, flash_attention=True)
    elif "pax" in (row["source"] + row["model"]).lower():  # fused attention comes with Transformer Engine
        kind = replace(framework("jax"), flash_attention=row.get("precision", "").upper() != "BF16")
    try:
        where = machine(gpu_name(row), whole(row, "gpus_per_node") or None, row.get("interconnect", ""))
    except PlanInputError as error:
        raise RowError(str(error)) from error
    if "?" in row.get("gpu", "") or not gpu_name(row):
        assumed.append("gpu")
    workload = Workload(
        model=model,
        sequence_length=sequence,
        global_batch=batch,
        numerics=numerics,
        layout=layout,
        machine=where,
        framework=kind,
        dropout=test.dropout if test is not None else source.dropout,
        assumed=tuple(assumed),
    )
    return Reading(workload, source, adapter)
