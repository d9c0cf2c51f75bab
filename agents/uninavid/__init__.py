"""Uni-NaVid (arXiv 2412.06224): checkpoints in the released layout, memory of tokens, acting, training."""
