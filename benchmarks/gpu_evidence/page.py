"""docs/findings/gpu.md, made from a record: python -m benchmarks.gpu_evidence.page results/gpu/RECORD.json"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from agents.common.checkpoints.files import GenerationSettings
from agents.common.decoders.turns import Decoder
from agents.common.decoders.windows import window_tokens
from agents.streamvln.network import StreamVLN
from benchmarks.gpu_evidence import plots, record
from benchmarks.gpu_evidence.fit import FEWEST, fit, measured
from benchmarks.gpu_evidence.pieces import MINUTES, PIECES, SETTINGS, every, find, first, request
from benchmarks.gpu_evidence.record import finished
from benchmarks.gpu_evidence.training import shown
from tests.training.geometry import config_of
from vlnbench.training.memory.plan import plan
from vlnbench.util.durable.files import write_bytes
from vlnbench.util.progress import say
from vlnbench.util.tables.cells import markdown_table

ROOT = Path(__file__).parents[2]
PAGE, PICTURES = ROOT / "docs" / "findings" / "gpu.md", ROOT / "docs" / "pictures"
UNKNOWN = "not measured"
MODEL = "streamvln-8b"
ANSWER = 8
"""Tokens of an answer with four actions."""


def write(content: Mapping[str, Any], page: Path = PAGE, pictures: Path = PICTURES) -> None:
    """Write the page and its plots. content: a record's."""
    settings = planned()
    drawn = plots.draw(content, settings, pictures)
    write_bytes(page, text(content, settings, drawn).encode())
    say(f"{page}: written, with {len(drawn)} plots")


def planned() -> dict[str, dict[str, Any]]:
    """Plans of all settings as they are made today, for the card of `request`."""
    return {name: shown(plan(request(name))) for name in SETTINGS}


def text(content: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]], drawn: Mapping[str, str]) -> str:
    """The whole page. drawn: files of plots by their name."""
    sections: tuple[Callable[..., Iterator[str]], ...] = (_head, _how, _training, _turns, _episodes, _small, _rest)
    parts = [part for section in sections for part in section(content, settings, drawn)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _head(content: Mapping[str, Any], *_: Any) -> Iterator[str]:
    yield "# On a GPU"
    yield "*What was measured on a GPU, how far from it do the plans lie, and how do I measure on mine?*"
    yield "<!-- made by `python -m benchmarks.gpu_evidence.page`: edit the module, not the page -->"
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
    yield "```bash\nvlnbench doctor --gpu-evidence evidence   # in a checkout\n```"
    total = sum(case.minutes for _, case in every())
    shortly = sum(case.minutes for _, case in first())
    yield _paragraph(
        f"asks a GPU in at most {MINUTES} minutes (planned: {shortly:.0f}) what is most worth knowing: parity of "
        "every family with its recordings, planned against measured memory of eight trainings, episodes an hour "
        "against a loop over single ones. It leaves `evidence.json` and `evidence.md` in the folder. Given again, "
        "it goes on where it was stopped, and once that is known with all the rest: about "
        f"{total:.0f} minutes on one card of 80 to 141 GB. Every case has a process of its own: one that runs out "
        "of memory, fails or hangs is recorded as such, and the next begins. A machine without network, and how "
        "this page is made: `benchmarks/gpu_evidence/README.md`."
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
        "The 8 B size with random weights, GB of 1e9 bytes, as planned today. Planned and measured is what "
        "tensors take at their peak (goal: within 5 %). The whole process adds the CUDA context and what the "
        "allocator holds besides: planned is what has to fit and, in brackets, what there is at the least and "
        "what nvidia-smi shows on a card with room, which is what was measured. The options of each setting are "
        "in `benchmarks.gpu_evidence.pieces:SETTINGS`. What is there before the first step is not compared."
    )
    cases = content["pieces"].get("training", {})
    rows = []
    for name, plan_ in settings.items():
        entry = cases.get(name, {})
        taken = (entry.get("found") or {}).get("measured")
        cells = [name, _gb(plan_["allocated"])]
        if taken:
            known = taken["context"] is not None and taken["reserved"]
            whole = taken["reserved"] + taken["context"] if known else None
            off = f"{100 * (plan_['allocated'] / taken['allocated'] - 1):+.1f} %"
            cells += [_gb(taken["allocated"]), off, _range(plan_), _gb(whole), f"{min(taken['ms_per_step']):,.0f}"]
        else:
            cells += [entry.get("status", UNKNOWN), UNKNOWN, _range(plan_), UNKNOWN, UNKNOWN]
        rows.append(cells)
    headers = ["setting", "planned", "measured", "off by", "planned, whole process", "measured", "ms per step"]
    yield markdown_table(headers, rows)
    yield from _picture(drawn, "training", "Planned and measured memory of training settings")
    known = measured(content, settings)
    if len(known) >= FEWEST:
        found = fit(known)
        worst = max(abs(each.off) for each in known)
        most, all_ = (each / 1e9 for each in found.held)
        yield _paragraph(
            f"Plans of what tensors take lie within {100 * worst:.1f} % of {found.settings} measured settings, "
            f"and of what the allocator holds within {most:.1f} GB but for two, which are off by up to "
            f"{all_:.1f}. The context is {found.context / 1e9:.2f} GB; with ZeRO 3, NCCL's included, about half a "
            "GB more."
        )
    else:
        yield "Of the planner's context and its model of the allocator nothing has been measured yet."


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
    rows += [[name, *[UNKNOWN] * 7] for name in _unknown(content, "turns")]
    yield _paragraph(
        "A turn is one look and an answer of eight tokens; without a right guess it takes eight passes, with "
        "one a "
        "single pass. Planned: weights and caches alone."
    )
    headers = ["attention", "episodes", "ms per turn", "guess right", "tokens/s", "episodes/h"]
    yield markdown_table([*headers, "planned GB", "allocated GB"], rows)
    yield from _picture(drawn, "turns", "Milliseconds per turn by episodes at once")


def _episodes(content: Mapping[str, Any], *_: Any) -> Iterator[str]:
    yield "## Episodes with simulators"
    yield _paragraph(
        "The 8 B size beside the embedded simulator, answers by script; the loop over single episodes is the "
        "published code's way (goal: eight times its pace)."
    )
    rows = [[name, *[UNKNOWN] * 6] for name in _unknown(content, "episodes")]
    for _name, found in finished(content, "episodes"):
        rows += [
            [
                name,
                found["at_once"],
                found["cores"],
                way["episodes"],
                f"{way['episodes_per_hour']:,.0f}",
                f"{way['steps_per_s']:,.0f}",
                way.get("times"),
            ]
            for name, way in found.get("ways", {}).items()
        ]
    headers = ["way", "at once", "cores", "episodes", "episodes/h", "steps/s", "times the loop"]
    yield markdown_table(headers, rows)


def _small(content: Mapping[str, Any], _: Any, drawn: Mapping[str, str]) -> Iterator[str]:
    yield "## Small models"
    yield from (f"{name} from scratch: {UNKNOWN}." for name in _unknown(content, "small"))
    for name, found in finished(content, "small"):
        if not found.get("arms"):
            continue
        yield f"{name} from scratch, {found['steps']} steps of {found['batch']} windows."
        off = found.get("differences", {})
        rows = [
            [arm, each["losses"][-1], each["windows_per_s"], off.get(arm), _gb(each["allocated"])]
            for arm, each in found["arms"].items()
        ]
        yield markdown_table(["arm", "last loss", "windows/s", "loss off the first arm's, at most", "GB"], rows)
        yield from _picture(drawn, "small", "Loss curves of the small model")


def _rest(content: Mapping[str, Any], *_: Any) -> Iterator[str]:
    yield "## Tests"
    yield from (f"`pytest -m gpu`: {UNKNOWN}." for _ in _unknown(content, "tests"))
    for _name, found in finished(content, "tests"):
        yield f"`pytest -m gpu`: {found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped."
        why = {name: entry.get("why") for name, entry in found["tests"].items() if entry["outcome"] != "passed"}
        if why:
            yield markdown_table(["test", "why"], why.items())
    rows = [
        [
            case,
            kind,
            f"{entry['relative']:.1e}" if "relative" in entry else "actions only",
            f"{entry['largest']:.1e}" if "largest" in entry else "actions only",
            f"{entry['same']} of {entry['tokens']}",
        ]
        for case, found in finished(content, "parity")
        for kind, entry in found.items()
    ]
    rows += [[name, *[UNKNOWN] * 4] for name in _unknown(content, "parity")]
    yield "## Parity"
    yield _paragraph(
        "Logits on the GPU against recordings of the original programs; streamvln-tiny and the actions of small "
        "agents against our CPU's."
    )
    yield markdown_table(["what", "precision", "largest error of an answer", "of a logit", "same tokens"], rows)
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


def _unknown(content: Mapping[str, Any], name: str) -> list[str]:
    """Cases of a piece of which nothing was found."""
    known = {case for case, _ in finished(content, name)}
    return [case.name for _, case in find(name) if case.name not in known]


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _picture(drawn: Mapping[str, str], name: str, title: str) -> Iterator[str]:
    if name in drawn:
        yield f"![{title}](../pictures/{drawn[name]})"


def _gb(size: float | None) -> str:
    return "-" if size is None else f"{size / 1e9:.1f}"


def _range(plan_: Mapping[str, Any]) -> str:
    return f"{_gb(plan_['peak'])} ({_gb(plan_['low'])} to {_gb(plan_['high'])})"


def main(path: Path) -> None:
    """Write the page of a record, and say how far plans lie from it."""
    content = record.read(path)
    write(content)
    print(fit(measured(content, planned())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
