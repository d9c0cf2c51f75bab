"""What ships with vlnbench: agents, and the model families that their checkpoints are trained and planned by."""

from __future__ import annotations

from typing import NamedTuple


class Listed(NamedTuple):
    """An agent: its import string, the name of the family of its checkpoints if it loads one, and a line about it.

    options: import string of the type of its options, in a module that loads nothing, where it has more than the
    common ones. small: the model that it brings is so small that an agent on each core is faster than one on all.
    """

    agent: str
    family: str
    summary: str
    options: str = "vlnbench.rollout.agent_options:AgentOptions"
    small: bool = False


FAMILIES: dict[str, str] = {
    "streamvln": "agents.streamvln.options:FAMILY",
    "vlnce": "agents.vlnce.options:FAMILY",
    "janusvln": "agents.janusvln.options:FAMILY",
    "qwen_vl": "agents.qwen_vl.options:FAMILY",
    "navila": "agents.navila.options:FAMILY",
    "uninavid": "agents.uninavid.options:FAMILY",
}
"""Import strings of the `FamilySpec`s by name."""

DEFAULT_FAMILY = "streamvln"
"""Whose options are shown where neither family nor checkpoint is given."""

AGENTS: dict[str, Listed] = {
    "stop": Listed("agents.scripted:StopAgent", "", "stops at once"),
    "forward": Listed("agents.scripted:ForwardAgent", "", "37 steps ahead, then stop"),
    "random": Listed("agents.scripted:RandomAgent", "", "random actions, seeded per episode"),
    "shortest-path": Listed(
        "agents.scripted:ShortestPathAgent", "", "oracle: follows the shortest path to the goal"
    ),
    "blind": Listed("agents.rules:BlindAgent", "", "reads the text, sees nothing: turns and walks mean distances"),
    "wander": Listed("agents.rules:WanderAgent", "", "sees depth, ignores the text: walks on where there is room"),
    "read-and-look": Listed(
        "agents.rules:ReadAndLookAgent", "", "blind, but turns away from what depth shows to block its way"
    ),
    "gt-replay": Listed(
        "agents.scripted:GroundTruthReplayAgent", "", "oracle: replays the dataset's ground-truth actions"
    ),
    "remote": Listed(
        "agents.remote:RemoteAgent",
        "",
        "one that `vlnbench serve` offers elsewhere; --agent remote://HOST:PORT",
        "agents.remote_options:RemoteOptions",
    ),
    "openai": Listed(
        "agents.openai.agent:OpenAIAgent",
        "",
        "any vision-language model behind an OpenAI-compatible server; needs --base-url and --model",
        "agents.openai.options:OpenAIOptions",
    ),
    "streamvln-tiny": Listed(
        "agents.streamvln.agent:StreamVLNTinyAgent",
        "streamvln",
        "a StreamVLN of 1.4 M parameters, trained on the generated houses; comes with vlnbench",
        "agents.streamvln.options:StreamVLNOptions",
        small=True,
    ),
    "streamvln": Listed(
        "agents.streamvln.agent:StreamVLNAgent",
        "streamvln",
        "StreamVLN; needs --checkpoint (arXiv 2507.05240)",
        "agents.streamvln.options:StreamVLNOptions",
    ),
    "cma-tiny": Listed(
        "agents.vlnce.agent:CMATinyAgent",
        "vlnce",
        "a CMA of 0.9 M parameters, trained on the generated houses; comes with vlnbench",
        "agents.vlnce.options:VLNCEOptions",
        small=True,
    ),
    "seq2seq-tiny": Listed(
        "agents.vlnce.agent:Seq2SeqTinyAgent",
        "vlnce",
        "a Seq2Seq of 0.5 M parameters, trained on the generated houses; comes with vlnbench",
        "agents.vlnce.options:VLNCEOptions",
        small=True,
    ),
    "vlnce": Listed(
        "agents.vlnce.agent:VLNCEAgent",
        "vlnce",
        "CMA or Seq2Seq, whichever --checkpoint holds (arXiv 2004.02857)",
        "agents.vlnce.options:VLNCEOptions",
    ),
    "vlnce-cma": Listed(
        "agents.vlnce.agent:CMAAgent",
        "vlnce",
        "VLN-CE's cross-modal attention; needs --checkpoint FILE.pth (arXiv 2004.02857)",
        "agents.vlnce.options:VLNCEOptions",
    ),
    "vlnce-seq2seq": Listed(
        "agents.vlnce.agent:Seq2SeqAgent",
        "vlnce",
        "VLN-CE's sequence to sequence; needs --checkpoint FILE.pth (arXiv 2004.02857)",
        "agents.vlnce.options:VLNCEOptions",
    ),
    "janusvln": Listed(
        "agents.janusvln.agent:JanusVLNAgent",
        "janusvln",
        "JanusVLN; needs --checkpoint (arXiv 2509.22548)",
        "agents.janusvln.options:JanusVLNOptions",
    ),
    "navila": Listed(
        "agents.navila.agent:NaVILAAgent",
        "navila",
        "NaVILA; needs --checkpoint (arXiv 2412.04453)",
        "agents.navila.options:NaVILAOptions",
    ),
    "uninavid": Listed(
        "agents.uninavid.agent:UniNaVidAgent",
        "uninavid",
        "Uni-NaVid; needs --checkpoint and its vision tower's file (arXiv 2412.06224)",
        "agents.uninavid.options:UniNaVidOptions",
    ),
    "qwen_vl": Listed(
        "agents.qwen_vl.agent:QwenVLAgent",
        "qwen_vl",
        "plain Qwen2.5-VL or a fine-tune, asked in words; needs --checkpoint (arXiv 2502.13923)",
        "agents.qwen_vl.options:QwenVLOptions",
    ),
}
"""Agents by name."""

RESULTS: dict[str, str] = {
    "streamvln": "agents.results:STREAMVLN",
    "janusvln": "agents.results:JANUSVLN",
    "navila": "agents.results:NAVILA",
    "uninavid": "agents.results:UNINAVID",
    "vlnce": "agents.results:VLNCE",
    "internnav": "agents.results:INTERNNAV",
    "evalai": "agents.results:EVALAI",
}
"""Formats of other programs' results by name, as import strings, for `vlnbench import`."""

REFERENCES = ("random", "blind", "read-and-look", "shortest-path")
"""Agents without a model that are evaluated beside the settings of a matrix, on the same episodes."""
