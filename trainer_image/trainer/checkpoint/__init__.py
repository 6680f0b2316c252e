"""State that outlives a process: memory snapshots, durable checkpoints, and one way back from both."""
