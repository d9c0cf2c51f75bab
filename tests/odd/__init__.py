"""What others may do wrong: odd agents, environments, servers and models, each tried in a whole evaluation."""
