"""VLN-CE's own agents, CMA and Seq2Seq (arXiv 2004.02857): small recurrent networks over RGB, depth and text."""
