"""The network of StreamVLN, its caches and greedy decoding."""
