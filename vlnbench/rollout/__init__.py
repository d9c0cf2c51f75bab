"""Episodes being run: one episode, and who runs many of them in processes, on GPUs and on clusters."""
