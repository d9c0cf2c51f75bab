"""A simulator in a process of its own: the process, both ends of it, and what passes between them."""
