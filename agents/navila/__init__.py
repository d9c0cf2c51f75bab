"""NaVILA (arXiv 2412.04453): VILA on eight frames of an episode, which answers with a sentence per move."""
