"""Qwen2.5-VL (arXiv 2502.13923), which several models are built on: sizes, tower, language model, answers."""
