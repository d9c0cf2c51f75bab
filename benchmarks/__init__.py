"""What is measured by hand, not tested: timings, side by side with other programs, evidence from a GPU."""
