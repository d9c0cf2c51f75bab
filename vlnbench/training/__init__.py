"""Training: collected trajectories, datasets, the trainer and what it costs in memory."""
