"""Model cards of the checkpoints that come with vlnbench, made from their files and from the committed runs.

`agents/checkpoints/<name>/README.md`, in the form that the Hugging Face hub reads. A run counts if the
hash in its identity is that of the checkpoint: figures of earlier weights disappear by themselves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from safetensors import safe_open

from agents.table import AGENTS
from vlnbench.data.benchmarks import BENCHMARKS
from vlnbench.training.family.find import find_family
from vlnbench.training.family.sources import shipped
from vlnbench.util.durable.json_stream import sha256
from vlnbench.util.tables.cells import markdown_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
CARD, WEIGHTS = "README.md", "model.safetensors"
SHOWN = ("SR", "SPL", "OS", "NE", "nDTW", "SDTW")
ABOUT = {
    "streamvln-tiny-base": "what variants of streamvln-tiny are fine-tuned from; it has looked at other houses "
    "than the benchmark's and walked there",
    "cma-tiny-base": "what variants of cma-tiny are trained from; it tells what it sees, has never walked",
    "seq2seq-tiny-base": "what variants of seq2seq-tiny are trained from; it tells what it sees, has never walked",
}
"""Of checkpoints that are no agent by their own name."""
PAGES = {"vlnce": "how-to/vlnce.md"}
"""Where families have a page of their own."""


def all_cards() -> dict[Path, str]:
    """The card of every checkpoint that comes with vlnbench, by its file."""
    return {folder / CARD: card(name) for name, folder in shipped().items()}


def card(name: str) -> str:
    """The card of a checkpoint, as it should be."""
    folder = shipped()[name]
    spec, _ = find_family("", name)
    content = spec.load_checkpoints().content_hash(folder, spec.check_training()(checkpoint=name, out=Path()))
    runs = list(_runs(content))
    about = ABOUT.get(name) or AGENTS[name].summary
    agent = f"--agent {name}" if name in AGENTS else f"--agent {spec.agent} --checkpoint {name}"
    page = PAGES.get(spec.name, "findings/streamvln_tiny.md")
    front = yaml.safe_dump(_front(name, runs), sort_keys=False, allow_unicode=True, width=1000)
    return f"""---
{front}---

<!-- made by `python -m tests.regenerate` -->

# {name}

{about[0].upper()}{about[1:]}.

```bash
vlnbench eval {agent} --split val_unseen
```

{markdown_table(["", ""], list(_facts(folder, spec.name, content)))}
## What it reaches

{_reached(runs)}
## How it was trained

On generated houses alone: [the commands](../../../docs/{page}), [the
houses](../../../docs/reference/houses.md). No image or text of Matterport3D, R2R or RxR was used.

## What it is not for

It knows generated houses and the words of their instructions. It has not been evaluated on scans of real buildings
or on robots, and does not tell what a published model of its architecture does at full size.
"""


def _facts(folder: Path, family: str, content: str) -> Iterator[tuple[str, str]]:
    path = folder / WEIGHTS
    with safe_open(path, "np") as tensors:
        shapes = [tensors.get_slice(key).get_shape() for key in tensors.keys()]  # noqa: SIM118 -- no mapping
        kinds = {str(tensors.get_slice(key).get_dtype()) for key in tensors.keys()}  # noqa: SIM118
    yield "family", family
    yield "parameters", f"{sum(map(math.prod, shapes)):,} in {len(shapes)} tensors ({', '.join(sorted(kinds))})"
    yield "weights", f"{WEIGHTS}, {path.stat().st_size / 1e6:.1f} MB, sha256 {sha256(path)}"
    yield "in the identity of a run", content
    yield "license", "MIT, as vlnbench"


def _runs(content: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Identity and leaderboard row of every committed run of these weights."""
    rows = [row for table in json.loads((RESULTS / "leaderboard.json").read_bytes()) for row in table["rows"]]
    for folder in sorted((RESULTS / "runs").iterdir()):
        identity = json.loads((folder / "manifest.json").read_bytes())["identity"]
        if identity.get("agent_identity", {}).get("checkpoint") == content:
            (row,) = (row for row in rows if row["source"].endswith(f", {folder.name}"))
            yield identity, row


def _reached(runs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    if not runs:
        return "No run of these weights is committed.\n"
    lines = [
        [
            f"{identity['benchmark']} {identity['split']}",
            row["episodes"],
            *(_interval(row, name) for name in SHOWN),
        ]
        for identity, row in runs
    ]
    units = [f"{name} ({'m' if name == 'NE' else '%'})" for name in SHOWN]
    note = "Means with 95 % intervals over scenes, from the runs in [results](../../../results/README.md).\n"
    return f"{markdown_table(['benchmark', 'episodes', *units], lines)}\n{note}"


def _interval(row: dict[str, Any], name: str) -> str:
    value = row["metrics"][name]
    if value is None:
        return ""
    digits = 2 if name == "NE" else 1
    return f"{value['mean']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def _front(name: str, runs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """What the hub reads: license, tags and results."""
    front: dict[str, Any] = {
        "license": "mit",
        "language": "en",
        "library_name": "vlnbench",
        "pipeline_tag": "robotics",
        "tags": ["vision-and-language-navigation", "embodied-ai"],
    }
    if runs:
        front["model-index"] = [{"name": name, "results": [_result(identity, row) for identity, row in runs]}]
    return front


def _result(identity: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    benchmark, split = identity["benchmark"], identity["split"]
    measured = [(each, row["metrics"][each]) for each in SHOWN if row["metrics"][each] is not None]
    return {
        "task": {"type": "robotics", "name": "vision-and-language navigation"},
        "dataset": {
            "type": benchmark,
            "name": f"{benchmark} ({BENCHMARKS[benchmark].summary})",
            "split": split,
            "revision": identity["dataset_version"],
        },
        "metrics": [{"type": each, "name": each, "value": round(value["mean"], 2)} for each, value in measured],
    }
