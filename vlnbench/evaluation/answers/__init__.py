"""What models said in a run, kept beside its rows, and its steps as tables."""
