"""When a run may stop before its end: what is wanted, rounds of episodes in random order, intervals for that."""
