"""What families whose networks answer in words share: parts, log-probabilities, planning, sizes of small ones."""
