"""Whether a run that goes well should change to a plan that measurements now say is better.

A healthy run is never changed for a little: the gain over the steps that are left must pay for the change several
times over, must be larger than what predictions err by, must have been there when last looked at, and must not make
running out of memory likelier. A run that is not healthy (it ran out of memory, or is measured to be about to) is
another matter: for that, the plan that is safe is taken at once. Pure; time is a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

SAFE = 0.01  # probability of running out of memory that nobody needs to think about


@dataclass(frozen=True)
class Rule:
    least_gain: float = 0.05  # of a step: what corrected predictions still err by
    pays: float = 3.0  # times the cost of the change
    looks: int = 2  # so often in a row it must look the same
    least_steps: int = 50  # measured at the present plan before it is judged


DEFAULT_RULE = Rule()


@dataclass(frozen=True)
class Prospect:
    """A plan for the present size, as measured or as predicted and corrected."""

    step_seconds: float
    p_oom: float
    reshapes: bool = False  # against the present one: its state must be cut anew


@dataclass(frozen=True)
class Situation:
    measured_steps: int  # of the present plan
    remaining_steps: int
    stop_seconds: float  # of training, that a voluntary change takes (measured, or of the last recovery)
    reshape_seconds: float  # more, where the state is cut anew
    starts_anyway: bool = False  # an epoch begins now for another reason: nothing is stopped for this
    ran_out: bool = False  # of memory, at the present plan
    looks: int = 0  # how often in a row it was found to pay, before this one


@dataclass(frozen=True)
class Choice:
    change: bool
    looks: int  # to be remembered for the next time
    reason: str


def choose(present: Prospect, other: Prospect, situation: Situation, rule: Rule = DEFAULT_RULE) -> Choice:
    """Whether to go over from `present` to `other`."""
    if situation.ran_out:
        if other.p_oom <= present.p_oom:  # both are next to nothing where the model sees no danger
            return Choice(True, 0, "the present plan ran out of memory, and this one needs less")
        return Choice(False, 0, "the present plan ran out of memory, but this one would sooner")
    if other.p_oom > max(SAFE, present.p_oom):
        return Choice(False, 0, f"it would run out of memory with a probability of {100 * other.p_oom:.1f} %")
    if situation.measured_steps < rule.least_steps:
        return Choice(
            False, 0, f"{situation.measured_steps} steps are measured, {rule.least_steps} are needed to judge"
        )
    saved = present.step_seconds - other.step_seconds
    if saved < rule.least_gain * present.step_seconds:
        return Choice(
            False,
            0,
            f"a step would save {100 * saved / present.step_seconds:.1f} %, less than the "
            f"{100 * rule.least_gain:.0f} % that predictions err by",
        )
    cost = change_seconds(other, situation)
    gain = saved * situation.remaining_steps
    equation = (
        f"{saved:.3g} s x {situation.remaining_steps} steps = {gain:.3g} s, and the change takes {cost:.3g} s"
    )
    if gain < rule.pays * cost:
        return Choice(False, 0, f"{equation}: it must save {rule.pays:g} times as much")
    looks = situation.looks + 1
    if looks < rule.looks:
        return Choice(False, looks, f"{equation}; waiting to see it again")
    return Choice(True, 0, equation)


def change_seconds(other: Prospect, situation: Situation) -> float:
    """What the change costs beyond what happens anyway."""
    stop = 0.0 if situation.starts_anyway else situation.stop_seconds
    return stop + (situation.reshape_seconds if other.reshapes else 0.0)
