"""A kind of model as three small protocols, which kinds there are, and what a checkpoint's name means."""
