"""Group relative policy optimization (arXiv 2402.03300): learning from rewards of what is done by chance."""
