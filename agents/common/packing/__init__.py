"""Small networks on few cores: the same arithmetic in fewer operations, and without padding."""
