"""Child processes: started or forked, watched, and their stacks when they hang."""
