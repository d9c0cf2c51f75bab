"""The reproduction ledger: what a run measured against what was published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal

from vlnbench.leaderboard.board import COLUMNS, OwnRun, Value, cite
from vlnbench.leaderboard.published import Literature, Published
from vlnbench.util.tables import csv_text, markdown_table

Verdict = Literal["within interval", "below", "above", "not comparable"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One metric of a run against a published value.

    verdict: whether the published value lies in the run's 95 % interval, or the run's mean below or above it (for
    NE and TL, below is shorter). Not comparable, with the reason, if the protocol or the data differ or may.
    """

    run: str
    method: str
    published_id: str | None
    metric: str | None
    mean: float | None
    se: float | None
    low: float | None
    high: float | None
    n: int | None
    published: float | None
    verdict: Verdict
    reason: str | None
    source: str | None


def make_ledger(literature: Literature, runs: Sequence[OwnRun]) -> list[Finding]:
    """Every run: one finding per metric if it claims to reproduce a published row, else one that says so."""
    findings = []
    for own in runs:
        if own.entry.reproduces is None:
            reason = "the run claims to reproduce no published row"
            findings.append(_finding(own, None, None, None, None, "not comparable", reason))
            continue
        row = literature.find(own.entry.reproduces)
        reasons = "; ".join(differences(literature, own, row))
        ours = own.metrics
        for label in COLUMNS:
            value, published = ours.get(label), getattr(row.metrics, label)
            if published is None:
                continue
            verdict, why = judge(value, published)
            if reasons:
                verdict, why = "not comparable", reasons
            findings.append(_finding(own, row, label, value, published, verdict, why or None))
    return findings


def differences(literature: Literature, own: OwnRun, row: Published) -> list[str]:
    """Why a run and a published row cannot be compared; empty if they can."""
    run, found = own.run, []
    benchmark = literature.benchmark(row)
    if benchmark is None:
        found.append("the protocol of the published row is unknown or not among the benchmarks here")
    elif benchmark != run.benchmark.name or run.identity.fingerprint != run.benchmark.fingerprint:
        found.append(f"protocol {run.benchmark.name} {run.identity.fingerprint}, published with {benchmark}")
    if row.split != run.split:
        found.append(f"split {run.split}, published on {row.split}")
    if row.languages is not None and not run.benchmark.languages:
        found.append(f"all languages, published on {row.languages}")
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


def judge(value: Value | None, published: float) -> tuple[Verdict, str]:
    """Verdict on one metric, with a reason if there is none to give."""
    if value is None:
        return "not comparable", "the run does not have this metric"
    if value.low is None or value.high is None:
        return "not comparable", "one scene: the run has no interval"
    if value.low <= published <= value.high:
        return "within interval", ""
    return ("below" if value.mean < published else "above"), ""


def render_ledger(findings: Sequence[Finding]) -> dict[str, str]:
    """The files of the ledger: name -> text."""
    headers = [field.name for field in fields(Finding)]
    rows = [[getattr(finding, name) for name in headers] for finding in findings]
    shown = [
        [f.run, f.method, f.published_id, f.metric, _shown(f), f.published, f.verdict, f.reason] for f in findings
    ]
    head = ["run", "method", "published row", "metric", "here (95 %)", "published", "verdict", "reason"]
    body = markdown_table(head, shown) if findings else "No run is committed yet.\n"
    return {
        "reproduction.json": json.dumps([asdict(f) for f in findings], indent=1, ensure_ascii=False) + "\n",
        "reproduction.csv": csv_text(headers, rows),
        "reproduction.md": f"{_PREFACE}\n{body}",
    }


_PREFACE = """# Reproduction ledger

Made by `vlnbench leaderboard` from `published.json` and `runs/`; do not edit. `within interval`: the published
value lies in the 95 % interval of the run (mean ± SE [interval], clustered by scene); otherwise the run's mean is
`below` or `above` it. Percent; NE and TL in metres.
"""


def _shown(finding: Finding) -> str | None:
    if finding.mean is None:
        return None
    if finding.se is None:
        return f"{finding.mean:.2f} (n {finding.n})"
    interval = f"[{finding.low:.2f}, {finding.high:.2f}]"
    return f"{finding.mean:.2f} ± {finding.se:.2f} {interval} (n {finding.n})"


def _finding(
    own: OwnRun,
    row: Published | None,
    metric: str | None,
    value: Value | None,
    published: float | None,
    verdict: Verdict,
    reason: str | None,
) -> Finding:
    return Finding(
        run=own.run.folder.name,
        method=own.entry.name,
        published_id=row.id if row else None,
        metric=metric,
        mean=value.mean if value else None,
        se=value.se if value else None,
        low=value.low if value else None,
        high=value.high if value else None,
        n=value.n if value else None,
        published=published,
        verdict=verdict,
        reason=reason,
        source=cite(row.source) if row else None,
    )
