"""The update rules, over this rank's own part of each parameter.

AdamW and Lion are elementwise, and so exact however a parameter is cut; their moments are cut like it. Muon gathers
each hidden matrix over tensor and shard before it orthogonalises it; its momentum is cut like the matrix. Adafactor
gathers gradient and weight; its means of rows and columns are whole on each rank. So all of them are exact under every
axis; the last two pay for it with communication. AdamW8bit is, too, under every cut that leaves its blocks whole.

State exists from the start, so that a checkpoint of any step has the same tensors; it restores at any other cut.
"""

from trainer.optim.groups import decays, is_hidden_matrix
from trainer.optim.optimizer import Optimizer

__all__ = ["Optimizer", "decays", "is_hidden_matrix"]
