"""Which episodes of a split a run takes: ids, scenes, languages, conditions, and what such a choice does."""
