"""The rows of a run as columns: a million take 0.1 GB and a few seconds to read."""
