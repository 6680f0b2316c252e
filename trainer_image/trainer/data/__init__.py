"""Training data: from documents to micro-batches, each sample exactly once through any change of size."""
