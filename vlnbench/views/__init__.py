"""One page over many runs, trainings, matrices and the leaderboard, as a file or live on this machine."""
