"""Results that other programs wrote, as run folders: read, checked, and marked wherever they are shown."""
