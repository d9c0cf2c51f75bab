"""Names of the agents that ship with vlnbench: name -> (import string, one line about it)."""

AGENTS: dict[str, tuple[str, str]] = {
    "stop": ("agents.scripted:StopAgent", "stops at once"),
    "forward": ("agents.scripted:ForwardAgent", "37 steps ahead, then stop"),
    "random": ("agents.scripted:RandomAgent", "random actions, seeded per episode"),
    "shortest-path": ("agents.scripted:ShortestPathAgent", "oracle: follows the shortest path to the goal"),
    "gt-replay": ("agents.scripted:GroundTruthReplayAgent", "oracle: replays the dataset's ground-truth actions"),
    "streamvln": ("agents.streamvln.agent:StreamVLNAgent", "StreamVLN; needs --checkpoint (arXiv 2507.05240)"),
}
