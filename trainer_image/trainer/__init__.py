"""What runs inside a worker pod: the agent, the ranks, the data, the checkpoints."""
