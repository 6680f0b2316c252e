"""Whether a configuration fits its accelerators, and how likely it is to run out of memory all the same.

The rule for a plan is simple and on the safe side: the predicted peak, a margin (1 GiB, or 4 % of the peak)
and what is not the allocator's must fit. The probability comes from how far predictions were from measurements
(`memory_spread` of the framework: standard deviation of their logarithms). The allocator's slack is not
counted: it is given back in need.
"""

from __future__ import annotations

import math

from trainingrun.planner.cost.memory import GIB
from trainingrun.planner.cost.types import Bill, Framework, Machine

MARGIN_SHARE = 0.04
MARGIN_BYTES = GIB
USUAL_SPREAD = 0.1  # of a framework that nobody measured


def margin(allocated: float) -> float:
    return max(MARGIN_BYTES, MARGIN_SHARE * allocated)


def fits(bill: Bill, machine: Machine, *, factor: float = 1.0) -> bool:
    """`factor`: what measurements of such configurations correct the prediction by."""
    allocated = bill.allocated * factor
    return allocated + margin(allocated) + bill.context <= machine.memory_bytes


def p_oom(bill: Bill, machine: Machine, framework: Framework, *, factor: float = 1.0) -> float:
    """The share of such predictions whose peak would have been beyond the memory."""
    room = machine.memory_bytes - bill.context
    allocated = bill.allocated * factor
    if room <= 0:
        return 1.0
    if allocated <= 0:
        return 0.0
    spread = framework.coefficients.get("memory_spread", USUAL_SPREAD)
    distance = math.log(room / allocated) / spread
    return 0.5 * math.erfc(distance / math.sqrt(2.0))
