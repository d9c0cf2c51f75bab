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
    name: f"agents.{name}.options:FAMILY"
    for name in ("streamvln", "vlnce", "janusvln", "qwen_vl", "navila", "uninavid")
}
"""Import strings of the `FamilySpec`s by name."""

DEFAULT_FAMILY = "streamvln"
"""Whose options are shown where neither family nor checkpoint is given."""


def _model(name: str, summary: str, *, agent: str = "", family: str = "", small: bool = False) -> Listed:
    """An agent whose options are called `name`Options. agent: what it is called if not so; family: if not so."""
    folder = family or name.lower()
    options = f"agents.{folder}.options:{name}Options"
    return Listed(f"agents.{folder}.agent:{agent or name}Agent", folder, summary, options, small)


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
    "streamvln-tiny": _model(
        "StreamVLN",
        "a StreamVLN of 1.4 M parameters, trained on the generated houses; comes with vlnbench",
        agent="StreamVLNTiny",
        small=True,
    ),
    "streamvln": _model("StreamVLN", "StreamVLN; needs --checkpoint (arXiv 2507.05240)"),
    "cma-tiny": _model(
        "VLNCE",
        "a CMA of 0.9 M parameters, trained on the generated houses; comes with vlnbench",
        agent="CMATiny",
        small=True,
    ),
    "seq2seq-tiny": _model(
        "VLNCE",
        "a Seq2Seq of 0.5 M parameters, trained on the generated houses; comes with vlnbench",
        agent="Seq2SeqTiny",
        small=True,
    ),
    "vlnce": _model("VLNCE", "CMA or Seq2Seq, whichever --checkpoint holds (arXiv 2004.02857)"),
    "vlnce-cma": _model(
        "VLNCE", "VLN-CE's cross-modal attention; needs --checkpoint FILE.pth (arXiv 2004.02857)", agent="CMA"
    ),
    "vlnce-seq2seq": _model(
        "VLNCE", "VLN-CE's sequence to sequence; needs --checkpoint FILE.pth (arXiv 2004.02857)", agent="Seq2Seq"
    ),
    "janusvln": _model("JanusVLN", "JanusVLN; needs --checkpoint (arXiv 2509.22548)"),
    "navila": _model("NaVILA", "NaVILA; needs --checkpoint (arXiv 2412.04453)"),
    "uninavid": _model("UniNaVid", "Uni-NaVid; needs --checkpoint and its vision tower's file (arXiv 2412.06224)"),
    "qwen_vl": _model(
        "QwenVL",
        "plain Qwen2.5-VL or a fine-tune, asked in words; needs --checkpoint (arXiv 2502.13923)",
        family="qwen_vl",
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
