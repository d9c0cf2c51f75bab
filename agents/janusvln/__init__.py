"""JanusVLN (arXiv 2509.22548): checkpoints in the released layout, the acting loop."""
