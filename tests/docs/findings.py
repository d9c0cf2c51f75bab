"""Tables of the page on which parts and which data: from the committed matrices."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "findings" / "which-parts-which-data.md"
MATRICES = "parts_x_shift", "augmentation_shift", "tunable_parts_x_data"
SHIFT, AUGMENTED, DATA = (ROOT / "results" / name for name in MATRICES)
COMMAND = "python -m tests.regenerate findings"
LOOKS, SPLITS = ("val_unseen_materials", "val_unseen"), ("val_seen", "val_unseen")


def page() -> str:
    """The page with its tables as they should be."""
    tables = {
        "shift": settings(SHIFT, LOOKS),
        "contrasts": contrasts(SHIFT, LOOKS),
        "augmented": settings(AUGMENTED, LOOKS),
        "augmented_contrasts": contrasts(AUGMENTED, LOOKS),
        "data": settings(DATA, SPLITS),
        "data_contrasts": contrasts(DATA, SPLITS),
    }
    return filled(PAGE, tables)


def filled(page: Path, tables: Mapping[str, str]) -> str:
    """A page with each of the tables between its two comments."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name}: made by `{COMMAND}` -->\n", f"<!-- end of {name} -->\n"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
    return text


def settings(folder: Path, splits: Sequence[str]) -> str:
    """Markdown: references and settings over their seeds; SR and SPL with intervals, and what a training takes."""
    document = json.loads((folder / "matrix.json").read_text(encoding="utf-8"))
    heads = ["", "trainings", *(f"{split} {name}" for split in splits for name in ("SR", "SPL"))]
    heads += ["windows", "epochs", "CPU-h", f"{document['sizes']}, planned (GB)"]
    lines = []
    for row in document["references"]:
        if row["status"] == "done":
            values = [_share(row["results"][split]["metrics"][name]) for split in splits for name in ("SR", "SPL")]
            lines.append([f"`{row['name']}`", "", *values, "", "", "", ""])
    for name, n, *values in _over_seeds(folder, 2 * len(splits)):
        rows = [
            row for row in document["rows"] if row["status"] == "done" and row["name"].startswith(f"{name}, seed=")
        ]
        lines.append([name, n, *values, *_costs(rows)])
    return markdown(heads, lines)


def contrasts(folder: Path, splits: Sequence[str]) -> str:
    """Markdown: what a choice changes of SR, in points: by itself, for all comparisons together, and p by Holm."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    with (folder / "effects.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "SR" and not row["in"] and row["difference"] and row["split"] in splits:
                of = found.setdefault((row["axis"], f"{row['value']} against {row['against']}"), {})
                of[row["split"]] = [row["pairs"], *_effect(row)]
    heads = ["", "pairs", *(f"{split}{what}" for split in splits for what in ("", ", together", ", p"))]
    blank = ["", "", "", ""]
    lines = [
        [value, *by.get(splits[0], blank)[:1], *(cell for split in splits for cell in by.get(split, blank)[1:])]
        for (_, value), by in found.items()
    ]
    return markdown(heads, lines)


def _over_seeds(folder: Path, columns: int) -> list[list[str]]:
    """Name, number of trainings and cells of every setting, as the matrix's own page has them."""
    text = (folder / "matrix.md").read_text(encoding="utf-8")
    text = text[text.index("## Over seeds") :]
    line = r"^\| (\S.*?) +\| (\d) of \d+ +" + r"\| (.+?) +" * columns + r"\|$"
    return [list(found.groups()) for found in re.finditer(line, text, re.MULTILINE)]


def _costs(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Windows, epochs, core hours of one training, and what the same parts of a published size take."""
    windows, hours = (
        fmean(each) for each in zip(*((_windows(row), row["device_hours"]["train"]) for row in rows), strict=True)
    )
    return [
        f"{windows:,.0f}",
        f"{fmean(row['epochs'] for row in rows):.1f}",
        f"{hours:.2f}",
        f"{rows[0]['vram']['sizes'] / 1e9:.1f}",
    ]


def _windows(row: dict[str, Any]) -> int:
    return int(row["steps_done"] * row["options"]["batch"] * row["options"]["accumulation"])


def _effect(row: dict[str, str]) -> list[str]:
    """Difference with its interval, the one that holds together with all others, and p."""
    points = {
        name: 100 * float(row[name]) for name in ("difference", "low", "high", "low_together", "high_together")
    }
    p = float(row["p_holm"])
    return [
        "{difference:+.1f} [{low:.1f}, {high:.1f}]".format(**points),
        "[{low_together:.1f}, {high_together:.1f}]".format(**points),
        "< 0.001" if p < 0.0005 else f"{p:.3f}",
    ]


def _share(value: dict[str, float]) -> str:
    return "{mean:.1f} [{low:.1f}, {high:.1f}]".format(
        **{name: 100 * value[name] for name in ("mean", "low", "high")}
    )


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *lines))
