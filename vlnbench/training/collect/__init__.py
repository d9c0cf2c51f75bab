"""Data to train on, made in simulators: walks, corrected walks of a model, questions about images."""
