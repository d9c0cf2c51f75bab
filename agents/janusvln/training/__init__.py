"""JanusVLN as a model family: options, parts, samples, cached features, probe inputs of the planner."""
