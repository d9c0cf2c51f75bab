"""How functions are compiled, and where compiled code and prepared files are kept."""
