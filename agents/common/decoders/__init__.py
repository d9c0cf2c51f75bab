"""Causal language models that answer many questions at once: batches, sampling, what was drawn."""
