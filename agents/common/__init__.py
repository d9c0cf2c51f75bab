"""What several kinds of checkpoint have in common: files, weights, tokenizers, devices."""
