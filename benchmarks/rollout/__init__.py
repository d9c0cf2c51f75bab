"""Episodes per hour: the engine, agents, served agents, many episodes, older checkouts."""
