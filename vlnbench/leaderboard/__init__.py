"""Published and own results side by side: ranking, comparison, leaderboard, reproduction ledger, submissions."""
