"""What a training configuration costs on known machines: bytes and seconds of each rank, by part.

    memory = peak_memory(workload)      # planner.cost.memory
    step = step_time(workload)          # planner.cost.time

Pure, and the same for our own engine and for the frameworks whose published measurements calibrate it: they differ in a
`Framework`, which is a table of coefficients. It must never read a measured outcome; corrections from measurements are
`planner.cost.calibration`'s.
"""
