"""The table of what can be done with each family of models, in README.md: from the families and from evidence.

What can be done with a family is told by its parts; measured is what a record in `results/gpu/` says is done,
reproduced what the ledger finds within tolerance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_evidence.pieces import request
from vlnbench.training.family.find import every_family
from vlnbench.training.family.policy import GivesLogProbabilities
from vlnbench.training.family.spec import FamilySpec

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "README.md", ROOT / "results"
BEGIN, END = "<!-- support: made by `python -m tests.regenerate support` -->\n", "<!-- end of support -->\n"
HEADS = ("family", "`eval`", "`train`", "`plan`", "GRPO", "measured on a GPU", "published SR reproduced")


def page() -> str:
    """README.md with the table as it should be."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    rows = [HEADS, ["---"] * len(HEADS), *map(row, sorted(every_family(), key=lambda each: each.name))]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def row(spec: FamilySpec) -> list[str]:
    """The cells of a family."""
    trains = spec.load_trains() if spec.trains else None
    plans = ("yes" if spec.inference else "training") if spec.plans and spec.planning else "no"
    can = ("no" if not each else "yes" for each in (spec.agent, trains))
    rewarded = "yes" if isinstance(trains, GivesLogProbabilities) else "no"
    measured, reproduced = ", ".join(on_gpu(spec)), ", ".join(within_tolerance(spec.name))
    return [f"`{spec.name}`", *can, plans, rewarded, measured or "not measured", reproduced or "not measured"]


def on_gpu(spec: FamilySpec) -> Iterator[str]:
    """What was measured of it, by card."""
    for path in sorted((RESULTS / "gpu").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        done = {
            piece: [name for name, each in cases.items() if each["status"] == "done"]
            for piece, cases in record["pieces"].items()
        }
        found = ["logits"] if any(name.partition("-")[0] == spec.name for name in done.get("parity", ())) else []
        if (
            spec.planning is not None
            and done.get("training")
            and isinstance(request(done["training"][0]), spec.planning)
        ):
            found.append("memory of training")
        if found and not record["toy"]:
            yield f"{' and '.join(found)} ({record['machine']['gpus'][0]['name'].removeprefix('NVIDIA ')})"


def within_tolerance(family: str) -> Iterator[str]:
    """Published rows of its released checkpoints whose SR a committed run has."""
    rows = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))["rows"]
    own = {each["id"] for each in rows if (each.get("released") or {}).get("family") == family}
    for finding in json.loads((RESULTS / "reproduction.json").read_text(encoding="utf-8")):
        if finding["reproduces"] in own and (finding["metric"], finding["verdict"]) == ("SR", "within tolerance"):
            yield f"`{finding['reproduces']}`"
