"""The page: one HTML file with its style, script, data, maps and videos inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from vlnbench.errors import UsageError
from vlnbench.evaluation.costs import by_step, format_hours, hours
from vlnbench.report.answers import figures
from vlnbench.report.breakdowns import breakdowns
from vlnbench.report.data import RunData
from vlnbench.report.failures import ENDINGS, endings, kinds
from vlnbench.report.frames import Frames
from vlnbench.report.maps import Storey
from vlnbench.report.payload import Videos, payload, to_script
from vlnbench.report.steps import steps_section
from vlnbench.report.tables import breakdown_section, endings_table, facts, metrics_table, tiles
from vlnbench.util.durable.files import write_bytes

SCRIPTS = ("map.js", "detail.js", "answers.js", "report.js")


def render(
    data: RunData,
    floors: Mapping[str, Sequence[Storey]],
    videos: Videos,
    frames: Frames,
    notes: Sequence[str] = (),
) -> str:
    """The page as text. notes: what is left out of it, one sentence each."""
    identity = data.run.identity
    title = f"{identity.called} on {identity.benchmark} {identity.split}"
    content = Content(title, _body(data, title, notes), payload(data, floors, videos, frames))
    return document(content, asset("report.css"), "".join(map(asset, SCRIPTS)))


@dataclass(frozen=True, slots=True)
class Built:
    """A page that has been written: where, its bytes, how much it shows, and what is left out of it."""

    path: Path
    size: int
    count: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Content:
    """What differs from page to page: its title, its body as HTML, and the data that its script reads."""

    title: str
    body: str
    data: Any


def document(content: Content, style: str, script: str, connect: str = "'none'") -> str:
    """A page that loads nothing but what is inside and runs only its own script, by its content security policy.

    connect: a source expression of where its script may connect to.
    """
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        f"img-src data:; media-src data:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(content.title)}</title>
<style>{style}</style>
</head>
<body>
{content.body}
<script type="application/json" id="run-data">{to_script(content.data)}</script>
<script>{script}</script>
</body>
</html>
"""


def asset(name: str, package: str = "vlnbench.report") -> str:
    """Text of a file that belongs to the page."""
    return (resources.files(package) / "assets" / name).read_text(encoding="utf-8")


def check_folder(path: Path) -> None:
    """Raise UsageError where no page can be written, before anything is drawn for it."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it or choose another --out")


def write(path: Path, text: str, count: int, notes: Sequence[str]) -> Built:
    """Write a page in one step. Raises UsageError where that cannot be."""
    page = text.encode(errors="replace")
    try:
        write_bytes(path, page)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error
    return Built(path, len(page), count, tuple(notes))


def _body(data: RunData, title: str, notes: Sequence[str]) -> str:
    found = kinds(data.run.benchmark.success_distance_m)
    ended, scored = endings(data.run.table), not data.run.table.having("unscored").all()
    counts = dict(zip(ENDINGS, np.bincount(ended, minlength=len(ENDINGS)).tolist(), strict=True))
    parts = [f"<section id='breakdowns'><h2>Breakdowns</h2>{_breakdowns(data)}</section>"] if scored else []
    shown = "".join(f"<li>{escape(note)}</li>" for note in notes)
    left_out = f"<ul class='notice' aria-label='Left out'>{shown}</ul>" if notes else ""
    return f"""<a class="skip" href="#episodes">Skip to the episodes</a>
<header>
<p class="kicker">vlnbench run report</p>
<h1>{escape(title)}</h1>
<p class="lead">{_lead(data)}</p>
{left_out}
<nav aria-label="Sections"><a href="#summary">Summary</a><a href="#endings">How episodes ended</a>
{'<a href="#breakdowns">Breakdowns</a>' if scored else ""}<a href="#maps">Maps</a><a href="#episodes">Episodes</a>
<a href="#run">Run</a></nav>
</header>
<main>
<noscript><p class="notice">Maps and the list of episodes need JavaScript; the rest does not.</p></noscript>
<section id="summary"><h2>Summary</h2>{_summary(data)}</section>
<section id="endings"><h2>How episodes ended</h2>
{endings_table(counts, found)}</section>
{"".join(parts)}
<section id="maps"><h2>Maps</h2><p class="note" id="maps-note"></p><div id="cards"></div></section>
<section id="episodes"><h2>Episodes</h2><div id="list"></div></section>
{_answers(data)}{_steps(data)}<section id="run"><h2>Run</h2>{facts(_run_facts(data))}</section>
</main>
<dialog id="detail" aria-labelledby="detail-title"></dialog>"""


def _lead(data: RunData) -> str:
    """What was run, with whatever a reader must not overlook."""
    summary, identity = data.summary, data.run.identity
    text = [f"{summary.n_done} of {summary.n_planned} planned episodes", identity.ran_in]
    if data.run.n_planned < data.run.n_split:
        text.append(f"a subset, {data.run.n_planned} of the {data.run.n_split} episodes of the split")
    labels = [f"imported as {identity.imported}: not run here"] if identity.imported else []
    labels += [f"chosen episodes: {identity.choice}"] if identity.choice else []
    if not summary.complete:
        labels.append("partial: the run is not finished")
    if data.run.manifest.get("agent_privileged"):
        labels.append("privileged agent: it saw what agents are not meant to see")
    if identity.partial:
        labels.append("the split does not hold the published number of episodes")
    marks = "".join(f" <strong class='mark'>{escape(label)}</strong>" for label in labels)
    return escape(" · ".join(text)) + marks


def _summary(data: RunData) -> str:
    summary = data.summary
    some = next((value for value in summary.metrics.values() if value is not None), None)
    if some is None:
        return "<p>No episode is scored: the goals of this split are not public.</p>"
    basis = f"clustered by scene ({some.clusters} scenes)" if some.clusters > 1 else "not known for one scene"
    note = (
        f"Standard errors (SE) and 95 % intervals are {basis}; intervals use Student's t, rates a Wilson interval "
        f"with the effective sample size. Errors: {summary.n_errors}, counted as failures. Unreachable goals: "
        f"{summary.n_unreachable}, success 0 and left out of NE ({summary.policy})."
    )
    return f"{tiles(summary)}{metrics_table(summary)}<p class='note'>{escape(note)}</p>"


def _breakdowns(data: RunData) -> str:
    found = kinds(data.run.benchmark.success_distance_m)
    return "".join(breakdown_section(breakdown, found) for breakdown in breakdowns(data))


def _answers(data: RunData) -> str:
    pairs = figures(data.said)
    note = (
        "Means over all answers that are kept. The field Answers above the list of episodes finds those in which "
        "something was said: a word, STOP, unparsable. An episode opens at the first answer that was found; arrow "
        "keys go step by step, with Shift from answer to answer."
    )
    shown = f'<section id="answers"><h2>Answers</h2><p class="note">{note}</p>{facts(pairs)}</section>\n'
    return shown if pairs else ""


def _steps(data: RunData) -> str:
    costs = by_step(data.run.table)
    return f'<section id="steps"><h2>Time per step</h2>{steps_section(costs)}</section>\n' if costs else ""


def _run_facts(data: RunData) -> list[tuple[str, str]]:
    manifest, took = data.run.manifest, hours(data.run.table, data.run.attempts)
    body = data.run.benchmark.body
    camera = body.camera
    versions = ", ".join(f"{name} {version}" for name, version in _packages(manifest).items() if version)
    return [
        *((name.replace("_", " "), str(value)) for name, value in data.run.identity.flat().items()),
        ("success distance", f"{data.run.benchmark.success_distance_m:g} m (geodesic)"),
        ("step budget", str(data.run.benchmark.max_steps)),
        ("body", f"{body.forward_m:g} m forward, {body.turn_deg:g}° turns, radius {body.agent_radius_m:g} m"),
        ("camera", f"{camera.width} x {camera.height}, hfov {camera.hfov:g}°, at {camera.height_m:g} m"),
        ("begun", str(manifest.get("created"))),
        ("metrics version", str(data.summary.metrics_version)),
        ("vlnbench", f"{manifest.get('vlnbench')}, {manifest.get('git') or 'no checkout'}"),
        ("packages", f"Python {manifest.get('python')}, {versions}"),
        ("hours", format_hours(took) or "unknown"),
        ("hardware", took.hardware or "unknown"),
    ]


def _packages(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    packages = manifest.get("packages")
    return packages if isinstance(packages, Mapping) else {}


def _digest(text: str) -> str:
    """A source expression of the content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
