"""JanusVLN, a navigation model with a semantic and a geometric memory (arXiv 2509.22548)."""
