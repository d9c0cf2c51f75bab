"""Derives every printed effect of a matrix anew from its outcomes, with formulas written out a second time.

    python -m benchmarks.statistics.rederive results/tunable_parts_x_data
    python -m benchmarks.statistics.rederive results/my_matrix --where 'houses/s0_val_unseen_00'

Reads matrix.json alone: successes episode by episode (`success`), or sums by scene, for SPL and where an older
version wrote it. Imports nothing of vlnbench. Compares with effects.csv and says how far apart the two are at
most; exit code 1 if by more than 1e-9. --where: effects on the episodes alone whose scene or id matches, without a
comparison (SR; where there are no episodes, by scene).
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

Document = dict[str, Any]
Scenes = dict[str, tuple[float, float]]
"""By scene the number of episodes (and repeats) and the sum of their scores."""
COLUMNS = [
    "difference",
    "deviation",
    "se",
    "low",
    "high",
    "degrees",
    "p",
    "p_holm",
    "low_together",
    "high_together",
]
NEAR = 1e-9


def by_scene(document: Document, result: Document, metric: str, where: str = "") -> Scenes:
    """Counts and sums of a result; where: regular expression that scene or episode have to match."""
    episodes = document.get("episodes", {}).get(result["identity"].get("episodes_sha256"))
    if metric == "SR" and episodes is not None and result.get("success"):
        repeats = result["identity"]["repeats"]
        bits = np.unpackbits(np.frombuffer(base64.b64decode(result["success"]), dtype=np.uint8))
        found: dict[str, list[int]] = defaultdict(list)
        for i, (name, scene) in enumerate(zip(episodes["ids"], episodes["scenes"], strict=True)):
            if re.search(where, scene) or re.search(where, name):
                found[scene] += [int(bit) for bit in bits[i * repeats : (i + 1) * repeats]]
        return {scene: (len(each), float(sum(each))) for scene, each in found.items()}
    scenes = result["scenes"][metric].items()
    return {scene: (float(n), float(total)) for scene, (n, total) in scenes if re.search(where, scene)}


def cr2(sums: np.ndarray, sizes: np.ndarray) -> float:
    """Variance of sum(sums) / sum(sizes), clusters being scenes (Bell and McCaffrey 2002)."""
    shares = sizes / sizes.sum()
    residuals = sums / sizes - sums.sum() / sizes.sum()
    return float(sum((w * r) ** 2 / (1 - w) for w, r in zip(shares, residuals, strict=True)))


def degrees(sizes: np.ndarray) -> float:
    """Satterthwaite's degrees of freedom of `cr2`, from the quadratic form written out as a matrix."""
    w = sizes / sizes.sum()
    center = np.eye(len(w)) - np.outer(np.ones(len(w)), w)
    form = center.T @ np.diag(w**2 / (1 - w)) @ center
    return float(np.clip(np.trace(form) ** 2 / np.trace(form @ form), 1, len(w) - 1))


def between_seeds(
    rows: list[Document], sums: list[np.ndarray], sizes: np.ndarray, drawn: bool
) -> tuple[float, float, int]:
    """Variance of means between seeds of a setting, the part of it that scenes explain, degrees of freedom.

    drawn: what the rows of one seed have in common is taken off, too.
    """
    kinds = pd.DataFrame({"setting": [str(setting(row)) for row in rows]})
    if drawn:
        kinds["seed"] = [row["labels"]["seed"] for row in rows]
    design = pd.get_dummies(kinds, columns=list(kinds), dtype=float).to_numpy()
    fitted, _, rank, _ = np.linalg.lstsq(design, np.array(sums), rcond=None)
    residuals = np.array(sums) - design @ fitted
    free = len(rows) - int(rank)
    squares = float(((residuals.sum(axis=1) / sizes.sum()) ** 2).sum())
    return squares / max(free, 1), sum(cr2(each, sizes) for each in residuals) / max(free, 1), free


def estimated(
    contexts: list[list[tuple[Document, Document]]], done: list[Document], of: tuple[Document, str, str, str]
) -> dict[str, float | None]:
    """Mean difference over contexts, with its interval over scenes and trainings at once, and p."""
    document, split, metric, where = of

    def table(row: Document) -> Scenes:
        return by_scene(document, row["results"][split], metric, where)

    pairs = [pair for each in contexts for pair in each]
    deltas = [mean_of(table(a)) - mean_of(table(b)) for a, b in pairs]
    found: dict[str, float | None] = dict.fromkeys(COLUMNS)
    found["deviation"] = float(np.std(deltas, ddof=1)) if len(deltas) > 1 else None
    found["difference"] = float(np.mean(deltas))
    first = table(pairs[0][0])
    shapes = {tuple(sorted((scene, n) for scene, (n, _) in table(row).items())) for pair in pairs for row in pair}
    if len(shapes) > 1:
        return found
    names, sizes = list(first), np.array([n for n, _ in first.values()])

    def vector(row: Document) -> np.ndarray:
        own = table(row)
        return np.array([own[name][1] for name in names])

    weight = {id(pair): 1 / (len(contexts) * len(each)) for each in contexts for pair in each}
    difference = sum(weight[id(pair)] * (vector(pair[0]) - vector(pair[1])) for pair in pairs)
    found["difference"] = float(np.sum(difference) / sizes.sum())
    q = 2 * sum(each**2 for each in weight.values())
    alike = [row for row in done if tuple(sorted((s, n) for s, (n, _) in table(row).items())) in shapes]
    own = {setting(row) for pair in pairs for row in pair}
    for chosen in ([row for row in alike if setting(row) in own], alike):
        sums = [vector(row) for row in chosen]
        square, explained, free = between_seeds(chosen, sums, sizes, bool(document.get("drawn")))
        if free >= 4:
            break
    variance, freedom = crossed(cr2(difference, sizes), degrees(sizes), (q * square, q * explained, free))
    return found | interval(found["difference"], variance**0.5, freedom, len(pairs) == 1 and sizes.sum())


def crossed(scenes: float, freedom: float, seeds: tuple[float, float, int]) -> tuple[float, float]:
    """Variance over scenes and trainings, and its degrees of freedom (Obuchowski and Rockette; Hillis)."""
    square, explained, free = seeds
    rest = max(scenes - explained, 0.0)
    variance = square + rest
    if free < 3 or not variance:
        return scenes, freedom
    return variance, max(1.0, variance**2 / (square**2 / free + rest**2 / freedom))


def interval(mean: float | None, se: float, freedom: float, single: float) -> dict[str, float | None]:
    """single: episodes of a difference of two runs, whose interval leaves room for what was not seen; or 0."""
    assert mean is not None
    t = float(stats.t.ppf(0.975, freedom))
    low: float | None = mean - t * se
    high: float | None = mean + t * se
    if single:
        unseen = t * t / (single + t * t)
        low = max(-1.0, min(mean - t * se, -1 + (mean + 1) * (1 - unseen)))
        high = min(1.0, max(mean + t * se, mean + (1 - mean) * unseen))
    elif se <= 1e-12:
        low = high = None
    p = None if se <= 1e-12 else 2 * float(stats.t.sf(abs(mean) / se, freedom))
    return {"se": se, "low": low, "high": high, "degrees": freedom, "p": p}


def mean_of(scenes: Scenes) -> float:
    return sum(total for _, total in scenes.values()) / sum(n for n, _ in scenes.values())


def setting(row: Document) -> tuple[str, ...]:
    return tuple(f"{axis}={label}" for axis, label in sorted(row["labels"].items()) if axis != "seed")


def asked(document: Document) -> list[tuple[str, str, str, list[tuple[str, str]], dict[str, str]]]:
    """Axis, name, what it is against, pairs of labels, and labels of other axes of all that is compared."""
    found = [
        (axis, label, labels[0], [(label, labels[0])], {})
        for axis, labels in document["axes"].items()
        for label in labels[1:]
        if axis != "seed"
    ]
    for each in document.get("contrasts", []):
        pairs = [(one, other) for one, other in each["pairs"]]
        against = pairs[0][1] if len(pairs) == 1 else f"others, in {len(pairs)} pairs"
        found.append((each["axis"], each["name"], against, pairs, dict(each.get("within", []))))
    return found


def once(document: Document) -> list[tuple[str, str, str, list[tuple[str, str]], dict[str, str]]]:
    """The same without comparisons of an axis that a contrast, which stand last, asks for again."""
    found, seen = [], []
    for axis, name, against, labels, within in reversed(asked(document)):
        rows = [row for row in document["rows"] if within.items() <= row["labels"].items()]
        pairs = [each for context in contexts_of(rows, axis, labels).values() for each in context]
        compared = sorted(sorted(row["name"] for row in pair) for pair in pairs)
        if (
            not compared
            or compared not in seen
            or name in [each["name"] for each in document.get("contrasts", [])]
        ):
            found.append((axis, name, against, labels, within))
        seen.append(compared)
    return found[::-1]


def effects(document: Document, metric: str, per_context: bool, where: str = "") -> list[Document]:
    """All effects of a metric; p-values and intervals of them together last."""
    document, alpha = looked_at(document)
    found = []
    for split in document["splits"]:
        done = [
            row
            for row in document["rows"]
            if (row["results"].get(split) or {}).get("metrics", {}).get(metric) is not None
        ]
        for axis, name, against, labels, within in once(document):
            alike = [row for row in done if within.items() <= row["labels"].items()]
            contexts = contexts_of(alike, axis, labels)
            for chosen in [[each] for each in contexts.items()] if per_context else [list(contexts.items())]:
                if not chosen:
                    continue
                head = {"metric": metric, "split": split, "axis": axis, "value": name, "against": against}
                head |= {"in": chosen[0][0] if per_context else None}
                pairs = [each for _, each in chosen]
                found.append(head | estimated(pairs, done, (document, split, metric, where)))
    return together(found, alpha)


def contexts_of(
    done: list[Document], axis: str, labels: list[tuple[str, str]]
) -> dict[str, list[tuple[Document, Document]]]:
    contexts: dict[str, list[tuple[Document, Document]]] = defaultdict(list)
    for one, other in labels:
        for row in done:
            wanted = {**row["labels"], axis: other}
            beside = [each for each in done if each["labels"] == wanted]
            if row["labels"][axis] == one and beside:
                rest = [label for name, label in row["labels"].items() if name not in (axis, "seed")]
                named = [f"{one} - {other}"] if len(labels) > 1 else []
                contexts[", ".join([*named, *rest])].append((row, beside[0]))
    return contexts


def looked_at(document: Document) -> tuple[Document, float]:
    """The rows of the last planned look, and the share of mistakes that it may make (Lan and DeMets)."""
    planned, seeds = document.get("looks") or [], document["axes"].get("seed", [])
    if not planned:
        return document, 0.05
    missing = {
        row["labels"]["seed"] for row in document["rows"] if row["status"] in ("pending", "running", "unfinished")
    }
    whole = [seed for i, seed in enumerate(seeds) if not missing & set(seeds[: i + 1])]
    taken = [0, *(each for each in planned if each <= len(whole))]
    spent = [
        2 * stats.norm.sf(stats.norm.isf(0.025) / (each / planned[-1]) ** 0.5) if each else 0.0 for each in taken
    ]
    rows = [row for row in document["rows"] if row["labels"]["seed"] in whole[: taken[-1]]]
    return {**document, "rows": rows}, float(spent[-1] - spent[-2]) if taken[1:] else 0.05


def together(found: list[Document], alpha: float) -> list[Document]:
    """Holm's p, in which 0.05 stands for alpha, and Bonferroni's intervals."""
    tested = sorted((each for each in found if each["p"] is not None), key=lambda each: each["p"])
    most = 0.0
    for place, each in enumerate(tested):
        most = max(most, min(1.0, (len(tested) - place) * each["p"] * 0.05 / alpha))
        half = stats.t.ppf(1 - alpha / 2 / len(tested), each["degrees"]) * each["se"]
        each["p_holm"] = most
        each["low_together"] = max(-1.0, each["difference"] - half)
        each["high_together"] = min(1.0, each["difference"] + half)
    return found


def compared(folder: Path) -> tuple[int, dict[str, float]]:
    """How many effects of effects.csv were derived, and by column how far the two are apart at most."""
    document = json.loads((folder / "matrix.json").read_text(encoding="utf-8"))
    if len({row["train_key"] for row in document["rows"]}) < len(document["rows"]):
        raise SystemExit(f"{folder}: its trainings are evaluated in several ways, which this does not derive")
    keys = ["metric", "split", "axis", "value", "against", "in"]
    own = pd.DataFrame([each for m in ("SR", "SPL") for by in (False, True) for each in effects(document, m, by)])
    written = pd.read_csv(folder / "effects.csv", dtype=dict.fromkeys(keys, str), keep_default_na=False)
    if own.empty and written.empty:
        return 0, {}
    own, written = (each.fillna({"in": ""}).set_index(keys).sort_index() for each in (own, written))
    if list(own.index) != list(written.index):
        other = own.index.symmetric_difference(written.index)
        raise SystemExit(f"{folder}: effects.csv has other effects than matrix.json: {[*other][:3]}")
    a, b = (each[COLUMNS].apply(pd.to_numeric) for each in (own, written))
    apart = (a - b).abs().where(a.notna() | b.notna(), 0.0).fillna(np.inf)  # a number on one side alone
    return len(own), {name: float(apart[name].max()) for name in COLUMNS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--where", default="")
    given = parser.parse_args()
    failed = False
    for folder in given.results:
        if given.where:
            document = json.loads((folder / "matrix.json").read_text(encoding="utf-8"))
            print(pd.DataFrame(effects(document, "SR", False, given.where)).to_string(index=False))
            continue
        count, apart = compared(folder)
        failed |= any(each > NEAR for each in apart.values())
        far = ", ".join(f"{name} {each:.1g}" for name, each in apart.items())
        print(f"{folder}: {count} effects; largest differences: {far or '-'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
