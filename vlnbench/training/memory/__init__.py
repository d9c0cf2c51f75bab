"""Memory of a training step, planned without a GPU."""
