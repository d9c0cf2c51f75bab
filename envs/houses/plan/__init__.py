"""A house as a plan: rooms, doors, furniture, and what can be seen from where."""
