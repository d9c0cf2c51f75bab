"""matrix.json as CSV, Markdown and plots: pure functions of it, so that they can always be made again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from vlnbench.errors import UsageError
from vlnbench.evaluation.costs import shown_hours
from vlnbench.evaluation.identity import read_identity
from vlnbench.matrix.rows import DOCUMENT
from vlnbench.matrix.spec import Matrix
from vlnbench.matrix.statistics.effects import COMPARED, Row, metric
from vlnbench.matrix.statistics.offline import OFFLINE_CSV, offline_csv, offline_section, scored_sets
from vlnbench.matrix.statistics.tables import EFFECTS_CSV, effects_csv, sections, split_title
from vlnbench.matrix.work.folder import read_json
from vlnbench.util import tables
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.tables import markdown_cell

CSV, MARKDOWN = "matrix.csv", "matrix.md"
GB = 10**9
TAIL_LINES = 8
HITS = ("found", "frames")


def write_tables(results: Path) -> str:
    """Write CSV, Markdown and plots beside matrix.json; returns the table. Raises UsageError without it."""
    document = read_json(results / DOCUMENT)
    if document is None:
        raise UsageError(f"{results / DOCUMENT}: not there; expected the results folder of `vlnbench matrix run`")
    try:
        write_bytes(results / CSV, csv_text(document).encode())
        write_bytes(results / EFFECTS_CSV, effects_csv(document).encode())
        write_bytes(results / MARKDOWN, markdown(document).encode())
        if scored_sets(document):
            write_bytes(results / OFFLINE_CSV, offline_csv(document).encode())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{results / DOCUMENT}: lacks {error}; run the matrix again to make it anew") from error
    try:
        from vlnbench.matrix.plots import write_plots
    except ImportError:
        return f"{_main_table(document, 'simple')}\n\n{results}: no plots (pip install 'vlnbench[report]')"
    files = write_plots(document, results)
    return f"{_main_table(document, 'simple')}\n\n{results}: {', '.join([CSV, EFFECTS_CSV, MARKDOWN, *files])}"


def format_settings(matrix: Matrix) -> str:
    """The settings of a matrix file."""
    rows = [[i, each.name, each.key, each.train_key] for i, each in enumerate(matrix.settings, start=1)]
    table = tabulate(rows, headers=["", "setting", "key", "training"], disable_numparse=True)
    return f"{matrix.name} {matrix.key}: {len(rows)} settings\n\n{table}"


def format_status(document: Mapping[str, Any]) -> str:
    """How far every setting is."""
    rows = []
    for row in document["rows"]:
        steps = "-" if row["steps"] is None else f"{row['steps_done'] or 0}/{row['steps']}"
        done = [split for split, result in row["results"].items() if result is not None]
        rows.append([row["name"], row["status"], row["stage"] or "", steps, ", ".join(done)])
    headers = ["setting", "status", "stage", "steps", "evaluated"]
    return str(tabulate(rows, headers=headers, disable_numparse=True))


def csv_text(document: Mapping[str, Any]) -> str:
    """One line per setting; numbers in full, nothing where a value is missing."""
    rows = [_flat(row, document) for row in document["rows"]]
    rows += [_flat_reference(row, document, rows[0]) for row in document.get("references", ())]
    return tables.csv_text(list(rows[0]), [list(row.values()) for row in rows])


def _flat(row: Row, document: Mapping[str, Any]) -> dict[str, Any]:
    machine = row["machine"] or {}
    flat = {
        "setting": row["name"],
        "kind": "setting",
        **{f"axis {axis}": row["labels"][axis] for axis in document["axes"]},
        **{name: row[name] for name in ("status", "reason", "exit_code", "key", "train_key")},
        "trainable_parameters": row["trainable_parameters"],
        "parameters": row["parameters"],
        "data": _data(row, full=True),
        **{name: row[name] for name in ("steps", "steps_done", "epochs", "loss", "windows_per_s")},
        "train_s": row["seconds"]["train"],
        **{f"{split}_s": row["seconds"].get(split) for split in document["splits"]},
        **{f"{stage}_device_h": _device_hours(row).get(stage) for stage in ("train", *document["splits"])},
        "device_unit": _device_hours(row).get("unit"),
        **{f"vram_{name}_bytes": row["vram"][name] for name in ("planned", "allocated", "reserved", "device")},
        "fits": row["vram"]["fits"],
        "host_bytes": row["host"],
    }
    if phases := _phase_names(document):
        spread, hits = row.get("memory_spread") or {}, row.get("feature_cache") or {}
        flat |= {f"phase_{name}_s": row.get("phases", {}).get(name) for name in phases}
        flat |= {"cpu_ms_per_window": row.get("cpu_ms_per_window")}
        flat |= {"spread_bytes": spread.get("spread"), **{f"features_{each}": hits.get(each) for each in HITS}}
    flat |= _flat_results(row, document)
    gpus = ", ".join(machine.get("gpus", ())) or None
    versions = {name: machine.get(name) for name in ("cpu", "cores", "vlnbench", "git")}
    return flat | {"gpus": gpus, "torch": machine.get("packages", {}).get("torch"), **versions}


def _flat_results(row: Row, document: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for split in document["splits"]:
        for label in COMPARED:
            found = metric(row, split, label) or {}
            flat |= {f"{split} {label}": found.get("mean")}
            flat |= {f"{split} {label} {end}": found.get(end) for end in ("low", "high")}
        result = row["results"].get(split) or {}
        flat |= {f"{split} {name}": result.get(name) for name in ("episodes", "n_errors")}
        took = result.get("hours") or {}
        flat |= {f"{split} {name}_h": took.get(name) for name in ("wall", "agent", "simulator")}
    return flat


def _flat_reference(row: Row, document: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """A reference in the columns of a setting, most of which it has no value for."""
    own = {"setting": row["name"], "kind": "reference", **{name: row[name] for name in ("status", "reason")}}
    own |= {f"{split}_s": row["seconds"].get(split) for split in document["splits"]}
    return {**dict.fromkeys(like), **own, **_flat_results(row, document)}


def markdown(document: Mapping[str, Any]) -> str:
    """The whole result for people: table, seeds, effects, failures."""
    parts = [
        f"# {markdown_cell(document['name'])}",
        f"{len(document['rows'])} settings, key {document['key']}. {_conditions(document)}",
        _main_table(document, "github"),
        ("SR and SPL in percent with 95 % intervals, clustered by scene. " if document["splits"] else "")
        + "VRAM in GB (1e9 bytes) of the GPU that took most: as planned before, then at its peak as allocated and "
        "as reserved by PyTorch, and of the whole process as the driver sees it; host: largest process of the "
        "training. A window is a sample of training. min: of the training, and of the evaluations; device-h: "
        "hours of both times GPUs or, without any, cores.",
    ]
    parts += [*sections(document), *offline_section(document), *_training_section(document)]
    failed = [row for row in [*document.get("references", ()), *document["rows"]] if row["reason"]]
    if failed:
        parts += ["## Failed and skipped", *(_failure(row) for row in failed)]
    return "\n\n".join(parts) + "\n"


def _conditions(document: Mapping[str, Any]) -> str:
    """Machines, and the simulators and data of the evaluations."""
    machines = {
        f"{' + '.join(machine['gpus']) or 'no GPU'}, {machine['cores']} cores of {machine['cpu']}, torch "
        f"{machine['packages']['torch']}, vlnbench {machine['vlnbench']} {(machine['git'] or '')[:12]}".strip()
        for machine in (row["machine"] for row in document["rows"])
        if machine
    }
    evaluated = {
        f"{identity.benchmark} {split} ({identity.episodes_of} episodes, {identity.simulator})"
        for row in document["rows"]
        for split, result in row["results"].items()
        if result and (identity := read_identity(result["identity"], f"{row['name']}: {split}"))
    }
    lines = ["Machine: " + "; ".join(sorted(machines))] if machines else []
    lines += ["evaluated on " + ", ".join(sorted(evaluated))] if evaluated else []
    return markdown_cell(". ".join(lines))


def _main_table(document: Mapping[str, Any], style: str) -> str:
    rows = []
    for number, row in enumerate(document["rows"], start=1):
        vram = row["vram"]
        cells = [
            str(number),
            row["name"],
            _scaled(row["trainable_parameters"], 1e6, 2),
            _data(row, full=False) or "-",
            _count(row["steps"]),
            _scaled(row["windows_per_s"], 1, 2),
            _scaled(row["seconds"]["train"], 60, 1),
            _scaled(_evaluation_seconds(row, document), 60, 1),
            _total_device_hours(row, document),
            *(_scaled(vram[name], GB, 2) for name in ("planned", "allocated", "reserved", "device")),
            _scaled(row["host"], GB, 2),
            *(_interval(row, split, label) for split in document["splits"] for label in COMPARED),
            row["status"] + (" (planned: does not fit)" if vram["fits"] == "no" else ""),
        ]
        rows.append(cells)
    rows += [_reference_cells(row, document, len(rows[0])) for row in document.get("references", ())]
    if style == "github":
        rows = [[markdown_cell(cell) for cell in cells] for cells in rows]
    headers = ["", "setting", "trained (M)", "instructions", "steps", "windows/s", "min", "eval min", "device-h"]
    headers += ["VRAM planned", "allocated", "reserved", "device", "host"]
    headers += [f"{split_title(split)} {label}" for split in document["splits"] for label in COMPARED]
    align = ("right", "left", "right", "left", *["right"] * (len(headers) - 4), "left")
    headers += ["status"]
    return str(tabulate(rows, headers=headers, tablefmt=style, disable_numparse=True, colalign=align))


def _training_section(document: Mapping[str, Any]) -> list[str]:
    """Where the time of every training went, and how evenly its ranks took memory; nothing for older documents."""
    rows = [row for row in document["rows"] if row.get("phases")]
    if not rows:
        return []
    names, lines = _phase_names(document), []
    for row in rows:
        total = sum(row["phases"].values()) or 1.0
        cells = [f"{100 * row['phases'].get(name, 0.0) / total:.0f}" for name in names]
        spread, hits = row["memory_spread"], row["feature_cache"]
        found = "-" if hits is None else f"{100 * hits['found'] / max(1, hits['frames']):.1f}"
        used = _scaled(row.get("cpu_ms_per_window"), 1, 1)
        lines.append([row["name"], used, *cells, found, _scaled(spread and spread["spread"], GB, 2)])
    headers = ["setting", "CPU ms per window", *(f"{name} (%)" for name in names)]
    headers += ["features found (%)", "ranks' spread (GB)"]
    table = tabulate(
        [[markdown_cell(cell) for cell in line] for line in lines],
        headers=headers,
        tablefmt="github",
        disable_numparse=True,
        colalign=("left", *["right"] * (len(headers) - 1)),
    )
    told = (
        "CPU time of the first process per window, the median of the log's lines, without processes that read "
        "frames; shares of its time in every phase of a step; how many frames' features were found in the cache; "
        "and by how much the peaks of a training's processes differ (of the GPU, without any of the host)."
    )
    return ["## Where the time of training goes", told, str(table)]


def _phase_names(document: Mapping[str, Any]) -> list[str]:
    """The phases that any training has; none in documents of older versions."""
    return list(dict.fromkeys(name for row in document["rows"] for name in row.get("phases") or ()))


def _device_hours(row: Row) -> Mapping[str, Any]:
    """As `rows` made them; none in documents of older versions."""
    return row.get("device_hours") or {}


def _evaluation_seconds(row: Row, document: Mapping[str, Any]) -> float | None:
    found = [seconds for split in document["splits"] if (seconds := row["seconds"].get(split)) is not None]
    return sum(found) if found else None


def _total_device_hours(row: Row, document: Mapping[str, Any]) -> str:
    parts = _device_hours(row)
    found = [hours for name in ("train", *document["splits"]) if (hours := parts.get(name)) is not None]
    return f"{shown_hours(sum(found))} {parts['unit']}" if found else "-"


def _reference_cells(row: Row, document: Mapping[str, Any], width: int) -> list[str]:
    """A reference in the columns of a setting: name, results and status."""
    results = [_interval(row, split, label) for split in document["splits"] for label in COMPARED]
    empty = ["-"] * (width - len(results) - 3)
    return ["", f"reference: {row['name']}", *empty, *results, row["status"]]


def _failure(row: Row) -> str:
    """A failed setting with the last lines of its log."""
    lines = "\n".join(f"    {line}" for line in row["tail"][-TAIL_LINES:])
    return f"**{markdown_cell(row['name'])}**: {markdown_cell(row['reason'])}" + (f"\n\n{lines}" if lines else "")


def _data(row: Row, full: bool) -> str | None:
    """The sets of a setting with their counts."""
    if row["data"] is None:
        return None
    shown = []
    for name, counts in row["data"].items():
        if not isinstance(counts, Mapping):  # of walks in simulators, and how an update is made up
            if full or name == "episodes":
                shown.append(f"{name.replace('_', ' ')} {counts:,}")
            continue
        weight = "" if counts["weight"] == 1 else f" x {counts['weight']:g}"
        conversations = counts.get("conversations", 0)
        text = f"{name} {conversations or counts.get('instructions', counts['windows']):,}"
        if full and "instructions" not in counts:  # a family that counts otherwise
            text += " windows"
        elif full and conversations:
            text += " conversations"
        elif full:
            others = {
                key: count for key, count in counts.items() if count and key not in ("instructions", "weight")
            }
            text += f" instructions on {', '.join(f'{count:,} {key}' for key, count in others.items())}"
        shown.append(text + weight)
    return "; ".join(shown)


def _interval(row: Row, split: str, label: str) -> str:
    found = metric(row, split, label)
    if found is None:
        return "-"
    text = f"{100 * found['mean']:.1f}"
    return text if found["low"] is None else f"{text} ({100 * found['low']:.1f} to {100 * found['high']:.1f})"


def _scaled(value: float | None, unit: float, digits: int) -> str:
    return "-" if value is None else f"{value / unit:,.{digits}f}"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
