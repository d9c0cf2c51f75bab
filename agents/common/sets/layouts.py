"""Names of the files that say what a folder of walks holds. Loads nothing heavy: options name them."""

from __future__ import annotations

from vlnbench.data.sets import TRAJECTORIES

EPISODES = ("train.json", "train.json.gz", "train_guide.json", "train_guide.json.gz")
"""Episodes whose frames lie in folders of their own, as the data published for JanusVLN have them."""
SET_FILES = (TRAJECTORIES, *EPISODES)
"""The file that says what a set's folder holds."""
