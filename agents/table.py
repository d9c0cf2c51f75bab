"""Names of the agents that ship with vlnbench: name -> (import string, one line about it)."""

AGENTS: dict[str, tuple[str, str]] = {
    "stop": ("agents.scripted:StopAgent", "stops at once"),
    "forward": ("agents.scripted:ForwardAgent", "37 steps ahead, then stop"),
    "random": ("agents.scripted:RandomAgent", "random actions, seeded per episode"),
    "shortest-path": ("agents.scripted:ShortestPathAgent", "oracle: follows the shortest path to the goal"),
    "blind": ("agents.rules:BlindAgent", "reads the text, sees nothing: turns and walks mean distances"),
    "wander": ("agents.rules:WanderAgent", "sees depth, ignores the text: walks on where there is room"),
    "read-and-look": (
        "agents.rules:ReadAndLookAgent",
        "blind, but turns away from what depth shows to block its way",
    ),
    "gt-replay": ("agents.scripted:GroundTruthReplayAgent", "oracle: replays the dataset's ground-truth actions"),
    "remote": (
        "agents.remote:RemoteAgent",
        "one that `vlnbench serve` offers elsewhere; --agent remote://HOST:PORT",
    ),
    "openai": (
        "agents.openai.agent:OpenAIAgent",
        "any vision-language model behind an OpenAI-compatible server; needs --base-url and --model",
    ),
    "streamvln-tiny": (
        "agents.streamvln.agent:StreamVLNTinyAgent",
        "a StreamVLN of 1.5 M parameters, trained on the generated houses; comes with vlnbench",
    ),
    "streamvln": ("agents.streamvln.agent:StreamVLNAgent", "StreamVLN; needs --checkpoint (arXiv 2507.05240)"),
    "vlnce-cma": (
        "agents.vlnce.agent:CMAAgent",
        "VLN-CE's cross-modal attention; needs --checkpoint FILE.pth (arXiv 2004.02857)",
    ),
    "vlnce-seq2seq": (
        "agents.vlnce.agent:Seq2SeqAgent",
        "VLN-CE's sequence to sequence; needs --checkpoint FILE.pth (arXiv 2004.02857)",
    ),
}

OPTIONS: dict[str, str] = {
    "remote": "agents.remote_options:RemoteOptions",
    "openai": "agents.openai.options:OpenAIOptions",
    "streamvln-tiny": "agents.streamvln.options:StreamVLNOptions",
    "streamvln": "agents.streamvln.options:StreamVLNOptions",
    "vlnce-cma": "agents.vlnce.options:VLNCEOptions",
    "vlnce-seq2seq": "agents.vlnce.options:VLNCEOptions",
}
"""Import strings of the options of agents that have more than the common ones, in modules that load nothing."""
