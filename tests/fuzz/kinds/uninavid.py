"""Checkpoints of Uni-NaVid, read as an agent does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.fuzz.judge import Builder
from tests.fuzz.kinds import checkpoints

TOKENIZER = "tokenizer.json"

read = checkpoints.read
write = partial(checkpoints.write_one, "uninavid")


def template_of_nothing(folder: Path) -> None:
    """A tokenizer that puts a token around texts which its file does not describe: its library panics."""
    tokenizer = json.loads(checkpoints.honest()["uninavid"][TOKENIZER])
    tokenizer["post_processor"]["special_tokens"] = {}
    checkpoints.put(folder, "uninavid", {TOKENIZER: json.dumps(tokenizer).encode()})


corpus: Mapping[str, tuple[Builder, str]] = {
    "honest": checkpoints.honestly("uninavid"),
    "a template of nothing": (template_of_nothing, "tokenizer.json: cannot be read"),
}
