"""What measurements teach about predictions, and when a run changes to another plan because of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.planner_builders import a_model, a_node, a_training, machines

from trainingrun.planner.feedback import LEAST_MEMORY, Measurement, Names, factors_of
from trainingrun.planner.keeping import DEFAULT_RULE, Prospect, Situation, choose
from trainingrun.planner.search import plan
from trainingrun.planner.weighing import NO_FACTORS

NAMES = Names("Native", "NVIDIA-H100-80GB-HBM3 x 8", "llama 32 x 4096", "tensor 2")


def measured(time: float = 1.0, memory: float = 0.0, **changes: object) -> Measurement:
    """200 steps that took `time` times as long as predicted, and `memory` times as much."""
    one = Measurement(
        names=NAMES,
        planner_version="1",
        nodes=2,
        steps=200,
        step_seconds=time * 2.0,
        predicted_step_seconds=2.0,
        peak_bytes=round(memory * 1000),
        predicted_peak_bytes=1000,
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def test_without_measurements_nothing_is_corrected() -> None:
    assert factors_of([], NAMES) == NO_FACTORS


def test_one_long_measurement_of_the_same_plan_teaches_nearly_all_of_it() -> None:
    found = factors_of([measured(1.2, 1.1)], NAMES)
    assert found.time == pytest.approx(1.2, rel=0.02)
    assert found.memory == pytest.approx(1.1, rel=0.02)


def test_it_teaches_less_about_another_model_and_nothing_about_other_hardware() -> None:
    known = [measured(1.2)]
    own = factors_of(known, NAMES).time
    other_model = factors_of(known, replace(NAMES, model="another")).time
    # The hardware and the model lie equally far apart: each gets about half of the logarithm.
    assert 1.05 < other_model < 1.12 < own
    assert factors_of(known, replace(NAMES, hardware="cpu x 2")) == NO_FACTORS
    assert factors_of(known, replace(NAMES, engine="DeepSpeed")) == NO_FACTORS


def test_few_steps_teach_little_and_fewer_nothing() -> None:
    long, short, none = (factors_of([measured(1.2, steps=steps)], NAMES).time for steps in (100, 6, 4))
    assert 1.0 < short < long
    assert none == 1.0
    assert factors_of([measured(memory=3.0, steps=4)], NAMES) == NO_FACTORS


@pytest.mark.parametrize("ratio", [0.1, 9.0, float("nan"), 0.0])
def test_what_is_beyond_belief_teaches_nothing(ratio: float) -> None:
    assert factors_of([measured(ratio)], NAMES) == NO_FACTORS


def test_memory_that_was_less_than_predicted_is_believed_only_so_far() -> None:
    assert factors_of([measured(memory=0.4)], NAMES).memory == LEAST_MEMORY


def test_measurements_beside_predictions_of_another_planner_are_of_no_use() -> None:
    assert factors_of([measured(1.2)], NAMES, planner_version="2") == NO_FACTORS
    assert factors_of([measured(1.2)], NAMES, planner_version="1").time > 1.1


def test_the_order_of_measurements_does_not_matter_much_and_twice_the_same_is_the_same() -> None:
    some = [measured(1.1), measured(1.3, names=replace(NAMES, layout="tensor 4")), measured(0.9, steps=20)]
    forth, back = factors_of(some, NAMES), factors_of(some[::-1], NAMES)
    assert forth.time == pytest.approx(back.time, rel=1e-3)
    assert factors_of(some, NAMES) == forth


def test_names_tell_models_precisions_and_layouts_apart_but_not_numbers_of_copies() -> None:
    node = a_node(4)
    path = plan(a_model(), a_training(), machines(node, 1, 2))
    one, two = (Names.of(a_model(), a_training(), node, planned.rung) for planned in path.rungs)
    if path.rungs[0].rung.micro_batch == path.rungs[1].rung.micro_batch:
        assert one == two
    assert Names.of(a_model(layers=4), a_training(), node) != Names.of(a_model(), a_training(), node)
    assert Names.of(a_model(), a_training(compute_bytes=2), node) != Names.of(a_model(), a_training(), node)


SITUATION = Situation(
    measured_steps=500, remaining_steps=10_000, stop_seconds=20.0, reshape_seconds=40.0, looks=1
)
PRESENT, FASTER = Prospect(2.0, 0.001), Prospect(1.8, 0.001)


def test_a_gain_that_pays_and_was_seen_twice_is_taken() -> None:
    found = choose(PRESENT, FASTER, SITUATION)
    assert found.change
    assert "0.2 s x 10000 steps = 2e+03 s, and the change takes 20 s" in found.reason


def test_the_first_look_only_remembers() -> None:
    found = choose(PRESENT, FASTER, replace(SITUATION, looks=0))
    assert (found.change, found.looks) == (False, 1)


@pytest.mark.parametrize(
    ("other", "changes", "words"),
    [
        (Prospect(1.95, 0.001), {}, "a step would save 2.5 %, less than the 5 %"),
        (Prospect(2.5, 0.001), {}, "a step would save -25.0 %"),
        (FASTER, {"remaining_steps": 100}, "it must save 3 times as much"),
        (FASTER, {"measured_steps": 10}, "10 steps are measured, 50 are needed"),
        (Prospect(1.0, 0.2), {}, "it would run out of memory with a probability of 20.0 %"),
        (replace(FASTER, reshapes=True), {"remaining_steps": 800}, "the change takes 60 s"),
    ],
)
def test_a_healthy_run_is_left_alone_otherwise(other: Prospect, changes: dict[str, int], words: str) -> None:
    found = choose(PRESENT, other, replace(SITUATION, **changes))
    assert not found.change
    assert found.looks == 0
    assert words in found.reason


def test_what_starts_anyway_pays_for_no_stop() -> None:
    few = replace(SITUATION, remaining_steps=100)
    assert not choose(PRESENT, FASTER, few).change
    assert choose(PRESENT, FASTER, replace(few, starts_anyway=True)).change


def test_a_run_that_ran_out_of_memory_goes_to_what_needs_less_at_once() -> None:
    out = replace(SITUATION, ran_out=True, looks=0, measured_steps=0)
    assert choose(Prospect(2.0, 0.6), Prospect(3.0, 0.01), out).change
    assert not choose(Prospect(2.0, 0.6), Prospect(1.0, 0.9), out).change


def test_going_back_and_forth_does_not_pay() -> None:
    """Whatever is chosen, the same figures the other way round never choose the way back."""
    for saved in (0.0, 0.04, 0.06, 0.2, 0.5):
        other = Prospect(2.0 * (1 - saved), 0.001)
        assert not (choose(PRESENT, other, SITUATION).change and choose(other, PRESENT, SITUATION).change)
    assert DEFAULT_RULE.looks > 1
