"""docs/gpu.md, made from a record, or from plans alone while there is none."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.turns import Decoder, window_tokens
from agents.streamvln.network import StreamVLN
from benchmarks.gpu_evidence import plots
from benchmarks.gpu_evidence.fit import FEWEST, fit, measured
from benchmarks.gpu_evidence.pieces import PIECES, SETTINGS, request
from benchmarks.gpu_evidence.record import finished
from benchmarks.gpu_evidence.training import shown
from tests.training.geometry import config_of
from vlnbench.training.memory.plan import plan
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.progress import say
from vlnbench.util.tables import markdown_table

ROOT = Path(__file__).parents[2]
PAGE, PICTURES = ROOT / "docs" / "gpu.md", ROOT / "docs" / "pictures"
NONE: Mapping[str, Any] = {"toy": False, "machine": {}, "sessions": [], "pieces": {}}
MODEL = "streamvln-8b"
ANSWER = 8
"""Tokens of an answer with four actions."""


def write(content: Mapping[str, Any] | None, page: Path = PAGE, pictures: Path = PICTURES) -> None:
    """Write the page and its plots. content: a record's; None: there is none yet."""
    known = content or NONE
    settings = planned(known)
    drawn = plots.draw(known, settings, pictures)
    write_bytes(page, text(known, settings, drawn).encode())
    say(f"{page}: written, with {len(drawn)} plots")


def planned(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Plans of all settings: as the record has them, else for the card of `request`."""
    known = {name: case["planned"] for name, case in finished(content, "training") if "planned" in case}
    return {name: known.get(name) or shown(plan(request(name))) for name in SETTINGS}


def text(content: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]], drawn: Mapping[str, str]) -> str:
    """The whole page. drawn: files of plots by their name."""
    sections: tuple[Callable[..., Iterator[str]], ...] = (_head, _how, _training, _turns, _episodes, _small, _rest)
    parts = [part for section in sections for part in section(content, settings, drawn)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _head(content: Mapping[str, Any], *_: Any) -> Iterator[str]:
    yield "# On a GPU"
    yield "*What was measured on a GPU, how far from it do the plans lie, and how do I measure on mine?*"
    yield "<!-- made by `python -m benchmarks.gpu_evidence --page`: edit the module, not the page -->"
    if not content["sessions"]:
        yield "**Planned only: no figure on this page was measured on a GPU yet.** One command measures them all."
        return
    if content["toy"]:
        yield "**From a trial at toy size on a CPU: these figures say nothing of a GPU.**"
    machine, packages = content["machine"], content["machine"]["packages"]
    gpus = ", ".join(f"{each['name']} ({each['memory_mib'] * 2**20 / 1e9:.1f} GB)" for each in machine["gpus"])
    commits = sorted({(session["commit"] or "unknown")[:12] for session in content["sessions"]})
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    yield markdown_table(
        ["", ""],
        [
            ["GPU", gpus or "none"],
            ["driver, CUDA", f"{machine['driver']}, {machine['cuda']}"],
            ["machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['host_gb']} GB"],
            ["programs", f"Python {machine['python']}, {versions}"],
            ["commit", ", ".join(commits)],
            ["begun", content["sessions"][0]["began"]],
        ],
    )


def _how(content: Mapping[str, Any], *_: Any) -> Iterator[str]:
    yield "## Measure"
    command = "python -m benchmarks.gpu_evidence"
    yield (
        f"```bash\n{command} --out evidence --limit-minutes 9   # again, until nothing is left\n"
        f"{command} --page evidence/evidence.json   # makes this page; kept: results/gpu\n"
        f"{command} --fit evidence/evidence.json    # the planner's constants\n```"
    )
    total = sum(case.minutes for piece in PIECES for case in piece.cases)
    yield _paragraph(
        f"takes about {total:.0f} minutes in all on one card of 80 to 141 GB. Every case has a process of its "
        "own: one "
        "that runs out of memory, fails or hangs is recorded as such, and the next begins. How to set up a "
        "machine "
        "without network: `benchmarks/gpu_evidence/README.md`."
    )
    rows = []
    for piece in PIECES:
        known = content["pieces"].get(piece.name, {})
        done = sum(entry["status"] == "done" for entry in known.values())
        minutes = sum(case.minutes for case in piece.cases)
        rows.append([piece.name, piece.summary, f"{minutes:.0f}", f"{done} of {len(piece.cases)}"])
    yield markdown_table(["piece", "what it asks", "minutes", "done"], rows)


def _training(
    content: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]], drawn: Mapping[str, str]
) -> Iterator[str]:
    yield "## Memory of training"
    yield _paragraph(
        "The 8 B size with random weights, GB of 1e9 bytes. Planned and measured is what PyTorch allocates (goal: "
        "within 5 %); the whole process adds the CUDA context and what the allocator wastes, and is planned "
        "with a "
        "margin. The options of each setting are in `benchmarks.gpu_evidence.pieces:SETTINGS`."
    )
    cases = content["pieces"].get("training", {})
    rows = []
    for name, plan_ in settings.items():
        entry = cases.get(name, {})
        taken = (entry.get("found") or {}).get("measured")
        cells = [name, _gb(plan_["allocated"])]
        if taken:
            whole = (
                None if taken["context"] is None or not taken["reserved"] else taken["reserved"] + taken["context"]
            )
            off = f"{100 * (plan_['allocated'] / taken['allocated'] - 1):+.1f} %"
            cells += [_gb(taken["allocated"]), off, _range(plan_), _gb(whole), f"{min(taken['ms_per_step']):,.0f}"]
        else:
            cells += [entry.get("status", "-"), "-", _range(plan_), "-", "-"]
        rows.append(cells)
    headers = ["setting", "planned", "measured", "off by", "planned, whole process", "measured", "ms per step"]
    yield markdown_table(headers, rows)
    yield from _picture(drawn, "training", "Planned and measured memory of training settings")
    known = measured(content)
    if len(known) >= FEWEST:
        found = fit(known)
        worst = max(abs(each.off) for each in known)
        yield _paragraph(
            f"Plans of what PyTorch allocates lie within {100 * worst:.1f} % of {found.settings} measured "
            "settings. "
            f"Fitted to them: a context of {found.context / 1e9:.2f} GB, fragmentation {found.fragmentation:.0%}, "
            f"margin {found.margin:.0%}."
        )
    else:
        yield "The planner's context, fragmentation and margin are assumptions: nothing has been fitted yet."


def _turns(content: Mapping[str, Any], _: Any, drawn: Mapping[str, str]) -> Iterator[str]:
    yield "## Acting"
    weights, token, typical = inference()
    yield _paragraph(
        f"By arithmetic, the 8 B size in bfloat16 takes {weights / 1e9:.1f} GB for weights and {token:,} bytes "
        "for the "
        f"keys and values of a token: {typical * token / 1e9:.2f} GB for a typical window of {typical:,} "
        "tokens, twice "
        "that during a turn. Activations are not planned."
    )
    rows = []
    for name, found in finished(content, "turns"):
        for row in found["rows"]:
            if row.get("out_of_memory"):
                rows.append([name, row["episodes"], "out of memory", *[""] * 5])
                continue
            slow, quick = row["no_guess"], row["guess_right"]
            cells = [
                name,
                row["episodes"],
                slow["ms_per_turn"],
                quick["ms_per_turn"],
                f"{slow['tokens_per_s']:,.0f}",
            ]
            cells += [f"{slow['episodes_per_hour']:,.0f}", _gb(row["planned"]), _gb(row["allocated"])]
            rows.append(cells)
    if not rows:
        return
    yield _paragraph(
        "A turn is one look and an answer of eight tokens; without a right guess it takes eight passes, with "
        "one a "
        "single pass. Planned: weights and caches alone."
    )
    headers = ["attention", "episodes", "ms per turn", "guess right", "tokens/s", "episodes/h"]
    yield markdown_table([*headers, "planned GB", "allocated GB"], rows)
    yield from _picture(drawn, "turns", "Milliseconds per turn by episodes at once")


def _episodes(content: Mapping[str, Any], *_: Any) -> Iterator[str]:
    for _name, found in finished(content, "episodes"):
        if not found.get("ways"):
            continue
        yield "## Episodes with simulators"
        yield _paragraph(
            f"{found['at_once']} episodes at once on {found['cores']} cores, embedded simulator, answers by "
            "script "
            "(goal: eight times a loop over single episodes)."
        )
        rows = [
            [
                name,
                way["episodes"],
                f"{way['episodes_per_hour']:,.0f}",
                f"{way['steps_per_s']:,.0f}",
                way.get("times"),
            ]
            for name, way in found["ways"].items()
        ]
        yield markdown_table(["way", "episodes", "episodes/h", "steps/s", "times the loop"], rows)


def _small(content: Mapping[str, Any], _: Any, drawn: Mapping[str, str]) -> Iterator[str]:
    for name, found in finished(content, "small"):
        if not found.get("arms"):
            continue
        yield "## Small models"
        yield f"{name} from scratch, {found['steps']} steps of {found['batch']} windows."
        off = found.get("differences", {})
        rows = [
            [arm, each["losses"][-1], each["windows_per_s"], off.get(arm), _gb(each["allocated"])]
            for arm, each in found["arms"].items()
        ]
        yield markdown_table(["arm", "last loss", "windows/s", "loss off the first arm's, at most", "GB"], rows)
        yield from _picture(drawn, "small", "Loss curves of the small model")


def _rest(content: Mapping[str, Any], *_: Any) -> Iterator[str]:
    for _name, found in finished(content, "tests"):
        yield "## Tests"
        yield f"`pytest -m gpu`: {found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped."
        why = {name: entry.get("why") for name, entry in found["tests"].items() if entry["outcome"] != "passed"}
        if why:
            yield markdown_table(["test", "why"], why.items())
    rows = [
        [
            case,
            kind,
            f"{entry['relative']:.1e}",
            f"{entry['largest']:.1e}",
            f"{entry['same']} of {entry['tokens']}",
        ]
        for case, found in finished(content, "parity")
        for kind, entry in found.items()
    ]
    if rows:
        yield "## Parity"
        yield "Logits on the GPU against recordings of the original programs (streamvln-tiny: against our CPU's)."
        yield markdown_table(
            ["what", "precision", "largest error of an answer", "of a logit", "same tokens"], rows
        )
    rest = [
        [f"{piece}/{case}", entry["status"], entry.get("reason", "")]
        for piece, cases in content["pieces"].items()
        for case, entry in cases.items()
        if entry["status"] != "done"
    ]
    if rest:
        yield "## Not measured"
        yield markdown_table(["case", "status", "why"], rest)


def inference() -> tuple[int, int, int]:
    """Bytes of weights and of a token's keys and values, and tokens of a typical window, at the 8 B size."""
    config = config_of(MODEL)
    with torch.device("meta"):
        model = StreamVLN(config).to(torch.bfloat16)
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    decoder = Decoder(model, GenerationSettings(frozenset()))
    return weights, decoder.cache_bytes_per_token, window_tokens(config, config.num_future_steps, ANSWER)


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _picture(drawn: Mapping[str, str], name: str, title: str) -> Iterator[str]:
    if name in drawn:
        yield f"![{title}](pictures/{drawn[name]})"


def _gb(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e9:.1f}"


def _range(plan_: Mapping[str, Any]) -> str:
    return f"{_gb(plan_['peak'])} ({_gb(plan_['low'])} to {_gb(plan_['high'])})"
