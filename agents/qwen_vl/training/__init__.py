"""Qwen2.5-VL as a model family: options, parts, samples, probe inputs of the planner."""
