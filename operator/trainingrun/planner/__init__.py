"""The planner: from a model, a training and machines to one plan for each size, with its memory, time and
reasons.

    inputs = planner_inputs(spec)          # planner.inputs
    path = plan(*inputs)                   # planner.search; PlanError when there is none
    document = describe(path)              # planner.describe

Pure: no I/O, no clock, no framework. `rules` says what is allowed, `candidates` what is tried, `memory` and
`time` what it costs, `search` what is taken, `reasons` and `advice` why.
"""
