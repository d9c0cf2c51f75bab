"""The network of JanusVLN: Qwen2.5-VL with the features of a VGGT aggregator added to its images."""
