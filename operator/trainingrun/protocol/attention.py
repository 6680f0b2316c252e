"""Up to which length attention on a CPU keeps the weights of its pairs of tokens for the backward pass.

There the trainer's own products are faster than torch's fused kernel, which computes the weights again; beyond it they
would take more memory than that is worth. The planner counts what the trainer keeps; standard library only.
"""

LONGEST_KEPT = 128  # tokens
