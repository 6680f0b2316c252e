"""The agent: PID 1 of a worker pod. It starts, watches and kills the ranks of one node, as membership says.

It decides nothing about the run: who trains, from where and with which plan comes in epoch records. What it
owes in return is evidence (how ranks ended, what this node holds) and that nothing outlives it.
"""
