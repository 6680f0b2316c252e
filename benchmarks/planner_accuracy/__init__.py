"""How well the planner's cost model predicts published measurements: a table of configurations in, predictions out."""
