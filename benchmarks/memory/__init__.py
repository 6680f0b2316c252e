"""Peak memory of real ranks beside what the planner predicts for them."""
