"""Training sets as they lie on disk: walks, conversations, and what hands them on."""
