"""Whether every layout trains as a plain transformers loop does: the matrix behind docs/parity.md."""
