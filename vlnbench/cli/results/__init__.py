"""Commands on finished runs: one file per command."""
