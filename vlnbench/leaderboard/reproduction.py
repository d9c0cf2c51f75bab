"""The reproduction ledger: what a run measured against what was published, or against an earlier run.

Both sides walked the same episodes, so the choice of scenes does not part them. The question is whether they
differ by more than two runs of one agent do. Where the rows of both are known, the differences by episode say how
much that is; where a mean alone was published, the spread of the outcomes bounds it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from vlnbench.evaluation.identity import SHARED
from vlnbench.evaluation.records import RowKey
from vlnbench.evaluation.summary import Metric, values
from vlnbench.leaderboard.board import BY_COLUMN, OwnRun, cite
from vlnbench.leaderboard.committed import RUNS
from vlnbench.leaderboard.published import Literature, Published, spoken
from vlnbench.util.tables.cells import csv_text, markdown_table
from vlnbench.util.tables.sheet import Value

Verdict = Literal["within tolerance", "below", "above", "not comparable", "not measured"]
Rule = Literal["paired episodes", "spread of outcomes"]
"""How a tolerance was found: `paired_tolerance` or `spread_tolerance`."""

_NORMAL = 1.959963984540054
"""97.5 % quantile of the normal distribution: two runs of one agent stay within a tolerance in 19 of 20 cases."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One metric of a run against the value that it is to reproduce.

    reproduces: the published row, or `runs/<name>` of a committed run, that `value` is of. mean, se, low, high, n:
    of the run, the interval being about scenes that were not seen. verdict: whether the mean is within `tolerance`
    of the value, or farther below or above it (for NE and TL, below is shorter); `rule` says where the tolerance
    comes from. Not comparable, with the reason, if the protocol or the data differ or may. Not measured: no run
    claims it.
    """

    run: str
    method: str
    reproduces: str | None
    metric: str | None
    mean: float | None
    se: float | None
    low: float | None
    high: float | None
    n: int | None
    value: float | None
    tolerance: float | None
    rule: Rule | None
    verdict: Verdict
    reason: str | None
    source: str | None


@dataclass(frozen=True, slots=True)
class Judgment:
    """What is said of one metric. See the fields of the same names in `Finding`."""

    value: float | None = None
    tolerance: float | None = None
    rule: Rule | None = None
    verdict: Verdict = "not comparable"
    reason: str | None = None


def make_ledger(literature: Literature, runs: Sequence[OwnRun]) -> list[Finding]:
    """Every run: one finding per metric if it claims to reproduce something, else one that says so."""
    findings: list[Finding] = []
    for own in runs:
        claim = own.entry.reproduces
        if claim is None:
            judged = Judgment(reason="the run claims to reproduce no published row")
            findings.append(_finding(own, None, judged, None))
        elif claim.startswith(f"{RUNS}/"):
            other = next(each for each in runs if f"{RUNS}/{each.run.folder.name}" == claim)
            judgments = judge_pairs(own, other)
            findings += [_finding(own, label, judged, None) for label, judged in judgments.items()]
        else:
            row = literature.find(claim)
            judgments = judge_published(literature, own, row)
            findings += [_finding(own, label, judged, cite(row.source)) for label, judged in judgments.items()]
    return findings


def not_measured(literature: Literature, runs: Sequence[OwnRun], families: Sequence[str]) -> list[Finding]:
    """What is left to reproduce: val_unseen of every released checkpoint that loads here and of which there is no
    run, and each family of models of which nothing is published."""
    claimed = {own.entry.reproduces for own in runs}
    known = {row.released.family for row in literature.rows if row.released}
    found = []
    for row in literature.rows:
        if row.released and row.split == "val_unseen" and row.id not in claimed:
            judged = Judgment(row.metrics.SR, verdict="not measured", reason="no run of the checkpoint is here")
            found.append(_blank(row.method, row.id, "SR", judged, cite(row.source)))
    for name in families:
        if name not in known:
            judged = Judgment(
                verdict="not measured", reason="no value of a checkpoint of this family is published"
            )
            found.append(_blank(name, None, None, judged, None))
    return found


def judge_published(literature: Literature, own: OwnRun, row: Published) -> dict[str, Judgment]:
    """Verdicts on the metrics that a row publishes: its values are means whose episodes are not known."""
    reasons, found = "; ".join(differences(literature, own, row)), {}
    for label, metric in BY_COLUMN.items():
        published = getattr(row.metrics, label)
        if published is None:
            continue
        each = list(_by_key(metric, own).values())
        if reasons:
            found[label] = Judgment(published, reason=reasons)
        elif not each:
            found[label] = Judgment(published, reason="the run does not have this metric")
        elif len(each) == 1:
            found[label] = Judgment(published, reason="one episode: the run has no spread")
        else:
            value = published / metric.scale
            tolerance = spread_tolerance(each, value if metric.kind == "rate" else None, own.run.repeats)
            found[label] = _judged(statistics.fmean(each), value, tolerance, metric.scale, "spread of outcomes")
    return found


def judge_pairs(own: OwnRun, other: OwnRun) -> dict[str, Judgment]:
    """Verdicts on the metrics that two runs both have, episode by episode."""
    found: dict[str, Judgment] = {}
    differing = own.run.identity.differences(other.run.identity).keys() & set(SHARED)
    reason = f"the runs differ in {', '.join(sorted(differing))}" if differing else None
    if own.run.identity.imported or other.run.identity.imported:
        reason = "imported results: not run here"
    if reason is None and own.run.rows.keys() != other.run.rows.keys():
        reason = "the runs have not finished the same episodes"
    for label, metric in BY_COLUMN.items():
        a, b = _by_key(metric, own), _by_key(metric, other)
        keys = [key for key in a if key in b]
        if reason is not None or not keys:
            found[label] = Judgment(reason=reason or "no episode has this metric in both runs")
            continue
        mean, value = (statistics.fmean(side[key] for key in keys) for side in (a, b))
        tolerance = paired_tolerance([a[key] - b[key] for key in keys])
        found[label] = _judged(mean, value, tolerance, metric.scale, "paired episodes")
    return found


def _by_key(metric: Metric, own: OwnRun) -> dict[RowKey, float]:
    return {row.key: value for row, value in values(metric, list(own.run.rows.values()))}


def spread_tolerance(values: Sequence[float], rate: float | None = None, repeats: int = 1) -> float:
    """How far the mean of `values` may be, by chance alone, from a mean over one pass of the same episodes.

    Outcomes vary within episodes, from run to run, and between episodes; so their whole variance s^2 bounds what
    one episode varies, and means of two runs over n episodes differ by at most 1.96 sqrt(2 s^2 / n) in 19 of 20
    cases. A bound: agents that choose the same actions every time differ by less. values: two or more, `repeats`
    for each episode. rate: the other mean where values are 0 or 1, whose variance is rate * (1 - rate).
    """
    variance = statistics.variance(values)
    other = variance if rate is None else rate * (1.0 - rate)
    return _NORMAL * math.sqrt((variance + repeats * other) / len(values))


def paired_tolerance(differences: Sequence[float]) -> float:
    """How far the mean of differences by episode may be from 0, by chance alone, if both runs are of one agent.

    Every difference d then has mean 0 and is independent of the others: 1.96 sqrt(sum d^2) / n. Of successes, that
    is McNemar's test.
    """
    return _NORMAL * math.sqrt(math.fsum(d * d for d in differences)) / len(differences)


def _judged(mean: float, value: float, tolerance: float, scale: float, rule: Rule) -> Judgment:
    verdict: Verdict = "below" if mean < value else "above"
    if abs(mean - value) <= tolerance + _ROUNDING:
        verdict = "within tolerance"
    return Judgment(round(value * scale, 4), round(tolerance * scale, 4), rule, verdict)


_ROUNDING = 1e-9
"""Means that are equal may differ in their last digits."""


def differences(literature: Literature, own: OwnRun, row: Published) -> list[str]:
    """Why a run and a published row cannot be compared; empty if they can."""
    run, found = own.run, []
    if run.identity.imported:
        found.append(f"imported from files of {run.identity.imported}: not run here")
    benchmark = literature.benchmark(row)
    if benchmark is None:
        found.append("the protocol of the published row is unknown or not among the benchmarks here")
    elif benchmark != run.benchmark.name or run.identity.fingerprint != run.benchmark.fingerprint:
        found.append(f"protocol {run.benchmark.name} {run.identity.fingerprint}, published with {benchmark}")
    if row.split != run.split:
        found.append(f"split {run.split}, published on {row.split}")
    languages = spoken(row.dataset, run.benchmark.languages)
    if set(languages) != set(row.languages or ()):
        published = ", ".join(row.languages or ()) or "unknown ones"
        found.append(f"languages {', '.join(languages)}, published on {published}")
    version = run.identity.dataset_version
    if row.dataset_version is None:
        found.append("the data version of the published row is unknown")
    elif row.dataset_version != version:
        found.append(f"data version {version}, published on {row.dataset_version}")
    if own.partial:
        found.append(
            f"{own.summary.n_done} episodes of {run.n_split * run.repeats}, or of a split that is not whole"
        )
    if run.manifest.get("agent_privileged"):
        found.append("the agent of the run is privileged")
    return found


def render_ledger(findings: Sequence[Finding]) -> dict[str, str]:
    """The files of the ledger: name -> text."""
    headers = [field.name for field in fields(Finding)]
    rows = [[getattr(finding, name) for name in headers] for finding in findings]
    shown = [
        [
            f.run,
            f.method,
            f.reproduces,
            f.metric,
            _shown(f),
            f.value,
            None if f.tolerance is None else f"{f.tolerance:.2f}",
            f.rule,
            f.verdict,
            f.reason,
        ]
        for f in findings
    ]
    facts = ["run", "method", "reproduces", "metric", "here (95 %)"]
    head = [*facts, "value", "tolerance", "rule", "verdict", "reason"]
    body = markdown_table(head, shown) if findings else "No run is committed yet.\n"
    return {
        "reproduction.json": json.dumps([asdict(f) for f in findings], indent=1, ensure_ascii=False) + "\n",
        "reproduction.csv": csv_text(headers, rows),
        "reproduction.md": f"{_PREFACE}\n{body}",
    }


_PREFACE = """# Reproduction ledger

Made by `vlnbench leaderboard` from `published.json` and `runs/`; do not edit. Percent; NE and TL in meters.

A run is `within tolerance` of the value that it is to reproduce, or `below` or `above` it, by what two runs of one
agent over the same episodes differ by in 19 of 20 cases. Where the rows of both are here, that is found from
`paired episodes`: 1.96 · sqrt(Σ d²) / n, d being the differences by episode. Where a mean alone was published, the
`spread of outcomes` bounds it: 1.96 · sqrt(2 s² / n), s² being the variance of the outcomes (of rates, p (1 - p));
that is 3.2 points for an SR of 50 % over the 1,839 episodes of R2R-CE val_unseen. The interval beside a mean
(mean ± SE [95 %], clustered by scene) is about scenes that were not seen, and decides nothing here. Released
checkpoints of which no run is here are `not measured`.
"""


def _shown(finding: Finding) -> str | None:
    if finding.mean is None:
        return None
    if finding.se is None:
        return f"{finding.mean:.2f} (n {finding.n})"
    interval = f"[{finding.low:.2f}, {finding.high:.2f}]"
    return f"{finding.mean:.2f} ± {finding.se:.2f} {interval} (n {finding.n})"


def _blank(method: str, row: str | None, label: str | None, judged: Judgment, source: str | None) -> Finding:
    """A finding without a run."""
    numbers: dict[str, Any] = dict.fromkeys(each.name for each in fields(Value))
    return Finding(run="", method=method, reproduces=row, metric=label, **numbers, **asdict(judged), source=source)


def _finding(own: OwnRun, label: str | None, judged: Judgment, source: str | None) -> Finding:
    value = own.metrics.get(label) if label else None
    numbers: dict[str, Any] = {each.name: getattr(value, each.name, None) for each in fields(Value)}
    return Finding(
        run=own.run.folder.name,
        method=own.entry.name,
        reproduces=own.entry.reproduces,
        metric=label,
        **numbers,
        **asdict(judged),
        source=source,
    )
