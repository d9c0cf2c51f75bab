"""Training of model families: trainer, DeepSpeed, parts, data, feature cache."""
