"""StreamVLN (arXiv 2507.05240): checkpoints in the released layout, the acting loop, training samples."""
