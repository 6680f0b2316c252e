"""The engine DeepSpeed: ZeRO 1, 2 and 3 in place of our own sharding, between the same data, loop and checkpoints.

`settings` makes DeepSpeed's configuration from the run, `library` loads it so that it never compiles anything,
`flat` finds the trained state in its buffers, `engine` builds it, `optimizer` and `step` stand in for what the engine
Native has under these names. The size of such a run is fixed: flat buffers are cut by the number of ranks.
"""
