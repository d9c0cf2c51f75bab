"""Reading large files of episodes."""
