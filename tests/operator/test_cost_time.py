"""Step times: what is known to be right, what must hold for every configuration, and what a bill says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.cost_builders import GPT_22B, LLAMA_8B, LLAMA_70B, MIXTRAL, a_workload

from trainingrun.planner.cost.compute import flops_per_token, shapes
from trainingrun.planner.cost.figures import figures
from trainingrun.planner.cost.frameworks import names
from trainingrun.planner.cost.time import step_time
from trainingrun.planner.cost.types import Link, Machine, Numerics, Recompute, Sharding, Workload
from trainingrun.planner.hardware.machine import cpu_machine, machine

powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    model = draw(st.sampled_from([LLAMA_8B, LLAMA_70B, GPT_22B, MIXTRAL]))
    data, pipeline, tensor = draw(powers), draw(powers), draw(powers)
    context = draw(st.sampled_from([1, 2]))
    sharding = draw(st.sampled_from(list(Sharding)))
    return a_workload(
        model,
        kind=draw(st.sampled_from(names())),
        gpu=draw(st.sampled_from(["H100-SXM-80GB", "A100-SXM-80GB", "B200-SXM-180GB"])),
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        data=data,
        virtual=draw(st.sampled_from([1, 2])) if pipeline > 1 else 1,
        sharding=sharding,
        shard=1 if sharding is Sharding.NONE else data * context,
        expert=draw(st.sampled_from([1, 2])) if model.experts and data > 1 else 1,
        micro_batch=draw(st.sampled_from([1, 2, 4])),
        accumulation=draw(st.sampled_from([8, 16])),
        sequence_parallel=draw(st.booleans()) and tensor > 1,
        recompute=draw(st.sampled_from(list(Recompute))),
    )


def seconds(work: Workload, **layout: object) -> float:
    return step_time(replace(work, layout=replace(work.layout, **layout))).total


def with_links(work: Workload, factor: float) -> Workload:
    def faster(link: Link) -> Link:
        return replace(link, bytes_per_second=link.bytes_per_second * factor)

    where = work.machine
    return replace(work, machine=replace(where, inside=faster(where.inside), between=faster(where.between)))


@given(workloads())
@settings(max_examples=200, deadline=None)
def test_a_faster_network_is_never_slower(work: Workload) -> None:
    assert step_time(with_links(work, 2.0)).total <= step_time(work).total * (1 + 1e-9)


@given(workloads())
@settings(max_examples=200, deadline=None)
def test_more_accelerators_never_compute_more_each(work: Workload) -> None:
    for axis in ("tensor", "pipeline"):
        more = replace(work, layout=replace(work.layout, **{axis: 2 * getattr(work.layout, axis)}))
        assert step_time(more).compute <= step_time(work).compute * (1 + 1e-9)


@given(workloads())
@settings(max_examples=200, deadline=None)
def test_recomputing_everything_is_never_faster(work: Workload) -> None:
    assert seconds(work, recompute=Recompute.FULL) >= seconds(work, recompute=Recompute.NONE)


@given(workloads())
@settings(max_examples=200, deadline=None)
def test_more_micro_batches_take_longer_and_idle_a_smaller_share(work: Workload) -> None:
    more = replace(work.layout, accumulation=2 * work.layout.accumulation)
    longer = replace(work, layout=more, global_batch=2 * work.global_batch)
    before, after = step_time(work), step_time(longer)
    assert after.total > before.total
    assert after.bubble / after.total <= before.bubble / before.total * (1 + 1e-9)


@given(workloads())
@settings(max_examples=100, deadline=None)
def test_parts_are_not_negative_and_make_up_the_step(work: Workload) -> None:
    step = step_time(work)
    parts = (step.compute, step.bubble, step.tensor, step.context, step.pipeline, step.expert, step.data)
    assert min(*parts, step.optimizer, step.other) >= 0
    assert sum(parts) + step.optimizer + step.other == pytest.approx(step.total)


@given(workloads())
@settings(max_examples=50, deadline=None)
def test_the_same_question_has_the_same_answer(work: Workload) -> None:
    assert step_time(work) == step_time(work)


def test_model_flops_of_a_gpt_are_those_of_the_published_formula() -> None:
    """72 B s L h^2 (1 + s/(6h) + V/(12 L h)) for a whole square (Narayanan et al., 2021, without recomputation)."""
    model, length = replace(GPT_22B, head_dim=6144 // 64), 2048
    h, layers, vocabulary = 6144, 48, 51200
    published = 72 * length * layers * h**2 * (1 + length / (6 * h) + vocabulary / (12 * layers * h))
    assert flops_per_token(model, length, causal=False) * length == pytest.approx(published, rel=1e-6)


def test_causal_attention_is_half_of_the_square() -> None:
    whole, causal = (flops_per_token(LLAMA_8B, 4096, causal=flag) for flag in (False, True))
    assert whole - causal == pytest.approx(3 * 4 * 4096 * 4096 * 32 / 2)


def test_weights_of_products_are_those_of_llama() -> None:
    """8.03 billion parameters, less the embedding and the norms."""
    sums = shapes(LLAMA_8B, 1, 1)
    assert sums.weights + sums.vocabulary * sums.hidden == 32 * (
        4096 * (4096 + 1024) * 2 + 3 * 4096 * 14336
    ) + (128256 * 4096)


def test_experts_that_a_token_does_not_pass_cost_no_flops() -> None:
    experts = MIXTRAL.experts
    assert experts is not None
    dense = replace(MIXTRAL, experts=None, intermediate_size=2 * 14336)
    assert flops_per_token(MIXTRAL, 4096) == pytest.approx(
        flops_per_token(dense, 4096) + 3 * 2 * 32 * 4096 * experts.count
    )


@pytest.mark.parametrize("framework", ["native", "megatron", "nemo"])
def test_a_70b_model_on_64_h100_reaches_what_such_runs_publish(framework: str) -> None:
    """Between 35 % and 65 % of the data sheet in BF16: 54 % published for tensor 4, pipeline 4, context 2."""
    work = a_workload(
        LLAMA_70B, kind=framework, tensor=4, pipeline=4, context=2, data=2, virtual=5, schedule="Interleaved1F1B",
        sharding=Sharding.OPTIMIZER, shard=4, accumulation=64, sequence_parallel=True, sequence_length=8192,
    )  # fmt: skip
    assert 0.35 < figures(work, step_time(work)).utilisation < 0.65


def test_narrow_formats_are_faster_on_machines_that_have_them_and_no_slower_elsewhere() -> None:
    work = a_workload(LLAMA_70B, kind="nemo", tensor=4, data=2, accumulation=8, sequence_parallel=True)
    narrow = replace(work, numerics=Numerics("fp8"))
    assert step_time(narrow).total < step_time(work).total
    old = replace(work, machine=machine("A100-SXM-80GB", 8))
    assert step_time(old).total > step_time(work).total


def test_an_optimizer_on_the_host_waits_for_its_link() -> None:
    work = a_workload(LLAMA_8B, data=8, sharding=Sharding.OPTIMIZER, shard=8, accumulation=2)
    assert seconds(work, offload_optimizer=True) > seconds(work)


def test_heads_that_fill_no_tile_are_slower_without_flash_attention() -> None:
    usual = a_workload(replace(GPT_22B, attention_heads=64, head_dim=96), kind="megatron-deepspeed", tensor=8)
    odd = a_workload(replace(GPT_22B, attention_heads=57, head_dim=108), kind="megatron-deepspeed", tensor=8)
    assert step_time(odd).compute > step_time(usual).compute * 1.05


def test_an_accelerator_that_no_table_knows_is_costed_from_its_numbers() -> None:
    strange = Machine(
        name="declared", accelerators=8, memory_bytes=80 << 30, memory_bytes_per_second=3e12,
        peak_flops={"bf16": 900e12}, measured_flops={}, inside=Link(300e9, 2e-6, 1e7), between=Link(40e9, 6e-6, 1e6),
    )  # fmt: skip
    step = step_time(replace(a_workload(LLAMA_8B, data=8, accumulation=4), machine=strange))
    assert 0 < step.total < 60


def on_two_cores(micro_batch: int, accumulation: int) -> float:
    """Tokens a second of the throughput benchmark's tiny model."""
    model = replace(LLAMA_8B, hidden_size=96, intermediate_size=288, layers=2, attention_heads=4, key_value_heads=2,
                    head_dim=24, vocabulary_size=512)  # fmt: skip
    work = a_workload(
        model, kind="native", micro_batch=micro_batch, accumulation=accumulation, sequence_length=128,
        numerics=Numerics("fp32", 4, 0, 4, 8, 4), machine=cpu_machine(1, 2, 8 << 30),
    )  # fmt: skip
    return work.global_batch * work.sequence_length / step_time(work).total


def test_two_cores_train_the_tiny_model_about_as_fast_as_it_was_measured() -> None:
    """40.1 thousand tokens a second in one micro-batch (docs/benchmarks.md)."""
    assert on_two_cores(16, 1) == pytest.approx(40_100, rel=0.4)
    assert on_two_cores(16, 1) > 1.02 * on_two_cores(8, 2)


def test_figures_say_what_a_step_means() -> None:
    work = a_workload(LLAMA_8B, data=8, accumulation=4, micro_batch=2)
    priced = replace(work, machine=replace(work.machine, price_per_hour=80.0))
    step = step_time(priced)
    found = figures(priced, step)
    tokens = 64 * 4096
    assert found.tokens_per_second == pytest.approx(tokens / step.total)
    assert found.utilisation == pytest.approx(step.model_flops / step.total / 8 / 989e12)
    assert found.equation.endswith(f"= {found.utilisation:.1%}")
    assert found.price_per_billion_tokens == pytest.approx(80 / 3600 * step.total * 1e9 / tokens)
    assert figures(work, step).price_per_billion_tokens is None
    assert 0 <= found.exposed < 1
