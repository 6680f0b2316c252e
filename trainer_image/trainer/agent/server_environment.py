"""Environment variables by which the agent tells its fork server what to do; no other program sets or reads
them.
"""

AGENT_PID = "TRAININGRUN_AGENT_PID"  # the process to die with
RANK_MODULE = "TRAININGRUN_RANK_MODULE"  # what to import
READY_PIPE = "TRAININGRUN_READY_PIPE"  # where to say how the import went
