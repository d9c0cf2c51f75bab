"""What another distribution can add to vlnbench."""
