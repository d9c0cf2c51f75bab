"""What a matrix will need before it runs: memory, steps, hours, disk, and what is missing."""
