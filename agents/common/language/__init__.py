"""What families whose networks answer in words share: parts, chances, planning, sizes of small ones."""
