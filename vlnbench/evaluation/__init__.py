"""A run: options, plan, records, metrics, statistics, summary, status, rescoring, costs and video."""
