"""What holds for each configuration: never more by sharing or recomputing more, never less fitting in more memory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.cost_builders import GPT_22B, LLAMA_8B, LLAMA_70B, MIXTRAL, a_workload

from trainingrun.planner.cost.fit import fits, p_oom
from trainingrun.planner.cost.frameworks import names
from trainingrun.planner.cost.memory import fullest, peak_memory
from trainingrun.planner.cost.types import Recompute, Sharding, Workload

powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    model = draw(st.sampled_from([LLAMA_8B, LLAMA_70B, GPT_22B, MIXTRAL]))
    data, context, pipeline, tensor = draw(powers), draw(st.sampled_from([1, 2])), draw(powers), draw(powers)
    virtual = draw(st.sampled_from([1, 2])) if pipeline > 1 else 1
    sharding = draw(st.sampled_from(list(Sharding)))
    return a_workload(
        model,
        kind=draw(st.sampled_from(names())),
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        data=data,
        virtual=virtual,
        schedule="1F1B" if virtual == 1 else "Interleaved1F1B",
        sharding=sharding,
        shard=1 if sharding is Sharding.NONE else data * context,
        expert=draw(st.sampled_from([1, 2])) if model.experts and data > 1 else 1,
        micro_batch=draw(st.sampled_from([1, 2, 3])),
        accumulation=draw(st.sampled_from([8, 16])),
        sequence_parallel=draw(st.booleans()) and tensor > 1,
        recompute=draw(st.sampled_from(list(Recompute))),
        dropout=draw(st.booleans()),
    )


def _peak(work: Workload, **layout: object) -> float:
    return max(bill.allocated for bill in peak_memory(replace(work, layout=replace(work.layout, **layout))))


@given(workloads())
@settings(max_examples=200, deadline=None)
def test_more_recomputation_never_needs_more(work: Workload) -> None:
    none, selective, full = (_peak(work, recompute=mode) for mode in Recompute)
    assert none >= selective * (1 - 1e-9)
    assert selective >= full * (1 - 1e-9)


@given(workloads())
@settings(max_examples=100, deadline=None)
def test_more_sequences_at_once_never_need_less(work: Workload) -> None:
    assert _peak(work, micro_batch=work.layout.micro_batch + 1) >= _peak(work)


@given(workloads())
@settings(max_examples=100, deadline=None)
def test_sequence_parallelism_never_needs_more(work: Workload) -> None:
    if work.layout.tensor > 1:
        assert _peak(work, sequence_parallel=True) <= _peak(work, sequence_parallel=False) * (1 + 1e-9)


@given(workloads(), st.floats(1.0, 4.0))
@settings(max_examples=100, deadline=None)
def test_more_memory_never_fits_less(work: Workload, factor: float) -> None:
    larger = replace(work.machine, memory_bytes=int(work.machine.memory_bytes * factor))
    here, there = peak_memory(work), peak_memory(replace(work, machine=larger))
    for small, large in zip(here, there, strict=True):
        assert fits(large, larger) or not fits(small, work.machine)
        risks = [p_oom(small, work.machine, work.framework), p_oom(large, larger, work.framework)]
        assert risks[1] <= risks[0]


@given(workloads())
@settings(max_examples=100, deadline=None)
def test_bills_are_positive_and_the_same_each_time(work: Workload) -> None:
    bills = peak_memory(work)
    assert bills == peak_memory(work)
    for bill in bills:
        assert (
            min(bill.weights, bill.gradients, bill.optimizer, bill.activations, bill.buffers, bill.slack) >= 0
        )
        assert bill.logits >= 0
    assert fullest(bills).total == max(bill.total for bill in bills)
