"""CMA and Seq2Seq as a model family: options, parts, samples, cached features, probe inputs of the planner."""
