"""What families whose networks answer in words have in common: parts, planning, walks that are drawn by chance."""
