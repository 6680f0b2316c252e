"""Rows of published configurations become workloads: what they say, what names stand for, what is assumed."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.planner_accuracy.megatron import megatron_test, stage_layers
from benchmarks.planner_accuracy.rows import OUTCOMES, RowError, read_row

from trainingrun.planner.cost.types import Recompute, Sharding

LLAMA = {
    "source": "SimuMax B200 real runs (Megatron-LM 0.14)", "source_ref": "", "model": "llama3-8b", "layers": "32",
    "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn": "14336", "vocab": "128256", "seq_len": "4096",
    "gpu": "H100-SXM-80GB", "gpus": "64", "gpus_per_node": "8", "interconnect": "NVLink4 + 8x400Gb/s IB NDR",
    "tp": "4", "pp": "2", "dp": "8", "cp": "1", "ep": "1", "vpp": "2", "zero_stage_or_fsdp": "dist-opt(zero1)",
    "micro_batch": "1", "global_batch": "128", "grad_accum": "16", "recompute": "none", "precision": "bf16",
    "seq_parallel": "yes",
}  # fmt: skip


def a_row(**given: Any) -> dict[str, str]:
    return {**LLAMA, **given}


def test_a_full_row_is_read_without_assumptions() -> None:
    work = read_row(a_row()).workload
    assert work.assumed == ()
    layout = work.layout
    assert (layout.tensor, layout.pipeline, layout.data, layout.virtual) == (4, 2, 8, 2)
    assert (layout.micro_batch, layout.accumulation, work.global_batch) == (1, 16, 128)
    assert (layout.sharding, layout.shard) == (Sharding.OPTIMIZER, 8)
    assert layout.schedule == "Interleaved1F1B"
    assert layout.sequence_parallel
    assert work.machine.accelerators == 8


@pytest.mark.parametrize("column", OUTCOMES)
def test_outcomes_are_not_read(column: str) -> None:
    assert read_row(a_row(**{column: "7.5"})).workload == read_row(a_row(**{column: ""})).workload


def test_what_names_stand_for_fills_empty_columns() -> None:
    model = read_row(
        a_row(model="deepseek-v3", layers="", hidden="", heads="", kv_heads="", ffn="", vocab="")
    ).workload.model
    assert model.layers == 61
    assert model.experts is not None
    assert (model.experts.count, model.experts.per_token) == (256, 8)
    assert model.latent is not None


def test_a_row_overrides_the_size_that_its_name_stands_for() -> None:
    model = read_row(
        a_row(model="deepseekv2 trimmed to 4 layers", layers="4", hidden="", heads="", kv_heads="")
    ).workload.model
    assert model.layers == 4
    assert model.hidden_size == 5120


def test_what_is_assumed_is_listed() -> None:
    reading = read_row(a_row(recompute="", micro_batch="", grad_accum="", gpu="H100-SXM-80GB?"))
    assert set(reading.workload.assumed) == {"recompute", "micro_batch", "gpu"}
    assert not reading.complete


def test_sizes_follow_from_the_number_of_parameters() -> None:
    row = a_row(source="BigScience gpt2 experiments (V100)", model="gpt2 52B", params_b="52", layers="", hidden="",
                heads="", kv_heads="", ffn="", vocab="", gpu="V100-SXM2-32GB")  # fmt: skip
    work = read_row(row).workload
    assert work.model.hidden_size == 8192
    assert 12 * work.model.layers * 8192**2 == pytest.approx(52e9, rel=0.02)
    assert {"layers", "hidden"} <= set(work.assumed)


@pytest.mark.parametrize(
    ("text", "sharding", "shard"),
    [
        ("none(ddp)", Sharding.NONE, 1),
        ("dist-opt(zero1)", Sharding.OPTIMIZER, 8),
        ("zero1(group 4)", Sharding.OPTIMIZER, 4),
        ("fsdp_shard_grad_op(zero2)", Sharding.GRADIENTS, 8),
        ("megatron-fsdp(8)", Sharding.WEIGHTS, 8),
        ("fsdp(1) dp(8)", Sharding.NONE, 1),
        ("hsdp", Sharding.WEIGHTS, 8),
        ("zero3+offload", Sharding.WEIGHTS, 8),
    ],
)
def test_sharding_in_the_words_of_tables(text: str, sharding: Sharding, shard: int) -> None:
    layout = read_row(a_row(zero_stage_or_fsdp=text)).workload.layout
    assert (layout.sharding, layout.shard) == (sharding, shard)
    assert layout.offload_optimizer == ("offload" in text)


@pytest.mark.parametrize(
    ("text", "compute"),
    [("BF16", "bf16"), ("FP8-MX", "mxfp8"), ("FP8-CS", "fp8"), ("fine-grained", "fp8"), ("NVFP4", "nvfp4"),
     ("fp16", "fp16"), ("MXFP8", "mxfp8"), ("bf16-true", "bf16")],
)  # fmt: skip
def test_formats_in_the_words_of_tables(text: str, compute: str) -> None:
    assert read_row(a_row(precision=text)).workload.numerics.compute == compute


def test_recomputation_in_the_words_of_tables() -> None:
    assert read_row(a_row(recompute="full(uniform,1)")).workload.layout.recompute is Recompute.FULL
    assert (
        read_row(a_row(recompute="selective(mlp act + norm)")).workload.layout.recompute
        is Recompute.SELECTIVE
    )


def test_adapters_are_told_by_the_name() -> None:
    reading = read_row(a_row(source="litgpt resource tables", model="Llama 2 7 B (LoRA, quant=bnb.nf4)",
    tp="1", pp="1",
                             gpus="1", layers="32", kv_heads="32", ffn="11008", vocab="32000"))  # fmt: skip
    assert reading.adapter == "QLoRA"
    assert reading.workload.numerics.adapters == 32 * 8 * (3 * 4096 + 4096)
    assert reading.workload.numerics.weights < 1


def test_a_source_says_what_its_memory_is() -> None:
    bloom = a_row(
        source="BigScience BLOOM prequel (Megatron-DeepSpeed)", gpu="A100-SXM-80GB", precision="fp16"
    )
    assert read_row(bloom).source.memory == "device"
    tests = a_row(source="Megatron-LM CI golden values", model="gpt/gpt3_mcore_te_tp2_pp2")
    assert read_row(tests).source.rank == "last"
    assert read_row(a_row()).source.memory == "allocated"


def test_a_row_that_says_too_little_is_refused() -> None:
    with pytest.raises(RowError, match="hidden_size"):
        read_row(a_row(model="unheard-of", layers="", hidden=""))
    with pytest.raises(RowError, match="Abacus"):
        read_row(a_row(gpu="Abacus 3000"))
    with pytest.raises(RowError, match="layers"):
        read_row(a_row(source="Megatron-LM CI golden values", layers=""))
    with pytest.raises(RowError, match="switches"):
        read_row(a_row(source="torchtune README optimization flags"))


def test_arguments_of_a_published_test_are_read() -> None:
    test = megatron_test("gpt/gpt3_mcore_te_tp1_pp4_vp1_uneven_pipeline", 8, 512, 12)
    assert stage_layers(test, 12, 4, 1) == (2, 4, 4, 2)
    assert test.dropout
    experts = megatron_test("moe/gpt3_mcore_te_tp2_pp1_te_8experts_etp1_ep4", 8, 512, 12)
    assert experts.expert_tensor == 1
    assert experts.model["experts"].count == 8


def test_a_test_that_is_not_in_the_table_is_read_from_its_name() -> None:
    test = megatron_test(
        "moe/gpt3_mcore_te_tp2_pp1_te_16experts2parallel_top2router_swiglu_rope_future", 8, 512, 12
    )
    assert test.model["experts"].count == 16
    assert test.model["experts"].per_token == 2
    assert test.model["gated"]
    assert test.model["rotary"]


def test_a_layout_of_stages_in_letters() -> None:
    test = megatron_test("moe/gpt3_moe_mcore_te_tp2_pp2_ep4_etp1_fine_grained_offloading", 32, 1024, 15)
    assert sum(stage_layers(test, 15, 2, 4)) == 15


def test_no_data_rank_is_without_a_sequence() -> None:
    row = a_row(
        gpus="64", tp="2", pp="1", cp="4", dp="", global_batch="4", micro_batch="1", grad_accum="", vpp="1"
    )
    layout = read_row(row).workload.layout
    assert (layout.data, layout.context, layout.world) == (4, 8, 64)
    assert "cp" in read_row(row).workload.assumed
