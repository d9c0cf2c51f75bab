"""Plain Qwen2.5-VL checkpoints (arXiv 2502.13923) and their fine-tunes, asked in words for the next actions."""
