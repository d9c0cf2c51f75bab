"""What a model answers, read as actions."""
