"""The main table of a matrix: what people see of every setting, and every number for CSV, JSON and data frames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vlnbench.errors import UsageError
from vlnbench.evaluation.costs import shown_hours
from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.stats import Estimate, differs, estimate_sums, holm, p_value
from vlnbench.matrix.rows import DOCUMENT
from vlnbench.matrix.statistics.effects import COMPARED, Row, metric
from vlnbench.matrix.work.folder import read_json
from vlnbench.util.tables.sheet import Column, Sheet, Value

GB = 10**9
HITS = ("found", "frames")


def read_document(results: Path) -> dict[str, Any]:
    """matrix.json of a results folder. Raises UsageError without it."""
    document = read_json(results / DOCUMENT)
    if document is None:
        raise UsageError(f"{results / DOCUMENT}: not there; expected the results folder of `vlnbench matrix run`")
    return document


def sheet_of(results: Path) -> Sheet:
    """The main table of a results folder. Raises UsageError for a matrix.json of another make."""
    try:
        return main_sheet(read_document(results))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{results / DOCUMENT}: lacks {error}; run the matrix again to make it anew") from error


def main_sheet(document: Mapping[str, Any]) -> Sheet:
    """A line per setting and reference. In data: numbers in full, shares from 0 to 1, nothing for missing ones."""
    settings, references = document["rows"], list(document.get("references", ()))
    flat = [_flat(row, document) for row in settings]
    flat += [_flat_reference(row, document, flat[0]) for row in references]
    columns = [Column(name, "", [row[name] for row in flat]) for name in flat[0]]
    rows: list[Row] = [*settings, *references]
    names = [*(row["name"] for row in settings), *(f"reference: {row['name']}" for row in references)]
    blank, sizes = [None] * len(references), document.get("sizes")

    def numbers(heading: str, values: list[float | None], unit: float, digits: int) -> Column:
        cells = [None if value is None else Value(value / unit) for value in values]
        return Column("", heading, [*cells, *blank], digits=digits)

    steps = [None if row["steps"] is None else f"{row['steps']:,}" for row in settings]
    statuses = [row["status"] + " (planned: does not fit)" * (row["vram"]["fits"] == "no") for row in settings]
    columns += [
        Column("", "#", [*range(1, len(settings) + 1), *blank], key=True),
        Column("", "setting", names, key=True),
        numbers("trained (M)", [row["trainable_parameters"] for row in settings], 1e6, 2),
        Column("", "instructions", [*(_data(row, full=False) for row in settings), *blank]),
        Column("", "steps", [*steps, *blank]),
        numbers("windows/s", [row["windows_per_s"] for row in settings], 1, 2),
        numbers("min", [row["seconds"]["train"] for row in settings], 60, 1),
        numbers("eval min", [_evaluation_seconds(row, document) for row in settings], 60, 1),
        Column("", "device-h", [*(_total_device_hours(row, document) for row in settings), *blank]),
        numbers("VRAM planned", [row["vram"]["planned"] for row in settings], GB, 2),
        *([numbers(f"{sizes}, planned", [row["vram"]["sizes"] for row in settings], GB, 1)] if sizes else ()),
        *(
            numbers(heading, [row["vram"][name] for row in settings], GB, 2)
            for name, heading in (("allocated", "allocated"), ("reserved", "reserved"), ("device", "process"))
        ),
        numbers("host", [row["host"] for row in settings], GB, 2),
    ]
    for split in document["splits"]:
        for label in COMPARED:
            cells = [_value(metric(row, split, label)) for row in rows]
            best = _best(settings, split, label)
            columns.append(Column("", f"{split.replace('_', ' ')} {label}", cells, digits=1, best=best))
    columns.append(Column("", "status", [*statuses, *(row["status"] for row in references)]))
    note = (
        "marked: settings that are not told from the best one on the same episodes, trainings taken as given (5 % "
        "for all in a column together, Holm)"
    )
    return Sheet(f"{document['name']}, key {document['key']}", tuple(columns), (note,) * bool(document["splits"]))


def _value(found: Mapping[str, Any] | None) -> Value | None:
    """In percent, with its interval."""
    if found is None:
        return None
    mean, low, high = (None if found[name] is None else 100.0 * found[name] for name in ("mean", "low", "high"))
    assert mean is not None
    return Value(mean, None, low, high)


def _best(settings: list[Row], split: str, label: str) -> frozenset[int]:
    """The best setting of those with the episodes of the first one, and what is not told from it."""
    sums = {
        i: (result["scenes"][label], [result.get("identity", {}).get(name) for name in SHARED])
        for i, row in enumerate(settings)
        if metric(row, split, label) is not None and (result := row["results"][split])
    }
    if not sums:
        return frozenset()
    first, shared = next(iter(sums.values()))
    sizes = {scene: n for scene, (n, _) in first.items()}
    alike = {
        i: each for i, (each, of) in sums.items() if of == shared and {s: n for s, (n, _) in each.items()} == sizes
    }
    best = max(alike, key=lambda i: sum(total for _, total in alike[i].values()))
    behind = {i: _behind(alike[best], each) for i, each in alike.items() if i != best}
    p = holm([p_value(each) for each in behind.values()])
    return frozenset(
        {best, *(i for (i, each), told in zip(behind.items(), p, strict=True) if not differs(each, told))}
    )


def _behind(best: Mapping[str, Any], other: Mapping[str, Any]) -> Estimate | None:
    """Difference of two settings by scene, which is that of their pairs of episodes."""
    sums = [other[scene][1] - total for scene, (_, total) in best.items()]
    return estimate_sums(sums, [n for n, _ in best.values()], "difference")


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
        **({"vram_sizes_bytes": row["vram"]["sizes"]} if document.get("sizes") else {}),
        "fits": row["vram"]["fits"],
        "host_bytes": row["host"],
        **{f"vram_{name}_bytes": peak(row, name) for name in peak_names(document)},
    }
    if phases := phase_names(document):
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


def peak_names(document: Mapping[str, Any]) -> list[str]:
    """Phases whose peaks of a GPU some setting knows, in their order, and the whole card; none without a GPU."""
    rows = document["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["vram"].get("phases") or ()))
    return [*names, *["card"] * any(row["vram"].get("card") for row in rows)]


def peak(row: Mapping[str, Any], name: str) -> int | None:
    """Bytes in a phase, or of the card."""
    found: int | None = {**(row["vram"].get("phases") or {}), "card": row["vram"].get("card")}.get(name)
    return found


def phase_names(document: Mapping[str, Any]) -> list[str]:
    """The phases that any training has; none in documents of older versions."""
    return list(dict.fromkeys(name for row in document["rows"] for name in row.get("phases") or ()))


def _device_hours(row: Row) -> Mapping[str, Any]:
    """As `rows` made them; none in documents of older versions."""
    return row.get("device_hours") or {}


def _evaluation_seconds(row: Row, document: Mapping[str, Any]) -> float | None:
    found = [seconds for split in document["splits"] if (seconds := row["seconds"].get(split)) is not None]
    return sum(found) if found else None


def _total_device_hours(row: Row, document: Mapping[str, Any]) -> str | None:
    parts = _device_hours(row)
    found = [hours for name in ("train", *document["splits"]) if (hours := parts.get(name)) is not None]
    return f"{shown_hours(sum(found))} {parts['unit']}" if found else None


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
