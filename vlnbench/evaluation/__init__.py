"""A run: options, plan, records, metrics, statistics, summary, status, rescoring, export and video."""
