"""What images show: reading them, and what is known of their parts."""
