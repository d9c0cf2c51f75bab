"""What the conformance classes say of implementations that are wrong, and of correct ones."""
