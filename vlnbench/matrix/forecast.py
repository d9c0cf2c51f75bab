"""What a matrix can show and how long it will take, before it is run: smallest effects, measured times."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.episodes import load_split
from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.choice import CHOICE, Choice
from vlnbench.evaluation.evaluate import make_plan
from vlnbench.matrix.execution import Execution
from vlnbench.matrix.needs.missing import missing
from vlnbench.matrix.needs.table import There, format_needs
from vlnbench.matrix.rows import DOCUMENT
from vlnbench.matrix.spec import Matrix, Setting
from vlnbench.matrix.statistics.contrasts import Contrast, comparisons
from vlnbench.matrix.statistics.power import ASSUMED, Components, Layout, components, detectable, layouts
from vlnbench.matrix.work.folder import read_json
from vlnbench.matrix.work.stages import Stages, stages_of
from vlnbench.util.tables.screen import folded, screen_width, wrapped

Document = Mapping[str, Any]


def documents(results: Path) -> list[Document]:
    """Results that may tell something of a matrix: its own first, then those beside them."""
    own = results / DOCUMENT
    others = sorted(path for path in results.parent.glob(f"*/{DOCUMENT}") if path != own)
    found = (read_json(path) for path in (own, *others))
    return [each for each in found if each is not None and isinstance(each.get("rows"), list)]


def format_forecast(
    matrix: Matrix, work: Path, results: Path, there: There, plans: dict[str, dict[str, Any]]
) -> str:
    """What the settings will need, how long they will take, and what their comparison can show."""
    known = documents(results)
    stages = [stages_of(matrix, work, setting) for setting in matrix.settings]
    times = estimate_times(matrix, stages, plans, known)
    found = zip(matrix.settings, stages, strict=True)
    hours = {setting.key: setting_hours(each, times) for setting, each in found}
    parts = [
        format_needs(matrix, plans, hours, there),
        wrapped("\n".join(f"missing: {line}" for line in missing(matrix)), screen_width()),
        wrapped(format_times(matrix.execution, stages, times), screen_width()),
        format_detectable(matrix, known),
    ]
    return "\n\n".join(part for part in parts if part)


# what it can detect


def format_detectable(matrix: Matrix, known: Sequence[Document]) -> str:
    """The smallest differences of SR that the matrix can tell from 0, and what more of each would buy."""
    labels = [setting.labels for setting in matrix.settings]
    parts = []
    for split in dict.fromkeys(split for each in matrix.settings for split in each.evaluate["splits"]):
        scenes = _scenes(matrix, split)
        assumed = _assumed_scenes(matrix, split) if scenes is None else None
        if scenes is None and assumed is None:
            parts.append(
                f"{split}: its episodes are not there yet, so what can be detected is not known; run.scenes can "
                f"say in how many scenes they are, such as {{{split}: 11}}"
            )
            continue
        variances = _components(matrix, split, known)
        asked = comparisons(matrix.axes, matrix.contrasts, labels)
        found = layouts(labels, asked, scenes or assumed or [], [each.train_key for each in matrix.settings])
        note = "; the episodes are not there yet: their published number, spread evenly" if assumed else ""
        if found:
            parts.append(_detectable_table(split, found, variances, note))
    if not parts:
        return ""
    return "\n\n".join(
        [
            "Smallest difference of SR, in points, that is told from 0 in 80 % of cases, at 5 % (two-sided);\n"
            "corrected: at 5 % for all comparisons of a split together (Bonferroni); then with twice the seeds,\n"
            "the episodes in the same scenes, or the scenes with as many episodes each:",
            *parts,
        ]
    )


def _detectable_table(split: str, found: Mapping[Contrast, Layout], variances: Components, note: str) -> str:
    """One split. note: what to know of its episodes."""
    rows = []
    for axis, layout in dict.fromkeys((asked.axis, each) for asked, each in found.items()):
        values = [asked.name for asked, each in found.items() if (asked.axis, each) == (axis, layout)]
        shown = ", ".join(values) if len(values) < 3 else f"{len(values)} values"
        more = (layout, layout.more_seeds(2), layout.more_episodes(2), layout.more_scenes(2))
        first, *others = (detectable(each, variances) for each in more)
        smallest = [first, detectable(layout, variances, len(found)), *others]
        pairs = f"{sum(layout.pairs)} in {len(layout.pairs)}"
        rows.append([axis, shown, pairs, *("-" if each is None else f"{100 * each:.1f}" for each in smallest)])
    scenes = next(iter(found.values())).scenes
    deviations = (variances.training, variances.episode, variances.scene)
    training, episode, scene = (100 * each**0.5 for each in deviations)
    headers = [
        split,
        "values",
        "pairs in contexts",
        "detects",
        "corrected",
        "2x seeds",
        "2x episodes",
        "2x scenes",
    ]
    width = screen_width()
    cells = [[headers[place], *(row[place] for row in rows)] for place in (0, *range(2, len(headers)))]
    for row, lines in zip(rows, folded([row[1] for row in rows], cells, width), strict=True):
        row[1] = lines
    align = ("left", "left", "right", *["right"] * 5)
    table = tabulate(rows, headers=headers, disable_numparse=True, colalign=align)
    why = "'-': there is nothing to tell it by: that takes two seeds of a setting, and two scenes"
    said = (
        f"{sum(scenes)} episodes in {len(scenes)} scenes, {len(found)} comparisons. Standard deviations "
        f"in points: {training:.1f} between seeds, {episode:.0f} of one episode of one training, {scene:.1f} of a "
        f"difference between scenes ({variances.source}){note}"
    )
    below = [why, said] if any("-" in row[3:] for row in rows) else [said]
    return "\n".join([str(table), *(wrapped(line, width) for line in below)])


def _scenes(matrix: Matrix, split: str) -> list[int] | None:
    """Episodes of every scene that the first setting is evaluated on; None where they are not there yet."""
    options = next(each.evaluate for each in matrix.settings if split in each.evaluate["splits"])
    benchmark = get_benchmark(options["benchmark"])
    root, repeats = options.get("data_root", Path("data")), options.get("repeats", 1)
    try:
        found = load_split(benchmark, split, root, allow_partial=options.get("allow_partial", False))
    except UsageError:
        return None
    choice = Choice.of(options)
    plan = make_plan(benchmark, found, "", count=options.get("episodes"), seed=0, repeats=repeats, choice=choice)
    return [repeats * count for count in Counter(episode.scene_id for episode in plan.episodes).values()]


def _assumed_scenes(matrix: Matrix, split: str) -> list[int] | None:
    """The same of episodes that are not there: as many as were published, in as many scenes as the file says."""
    first = next(each for each in matrix.settings if split in each.evaluate["splits"])
    count, scenes = _episodes(first, split), matrix.execution.scenes.get(split)
    if count is None or scenes is None:
        return None
    return [len(range(scene, count, scenes)) for scene in range(min(scenes, count))]


def _components(matrix: Matrix, split: str, known: Sequence[Document]) -> Components:
    benchmark = matrix.settings[0].evaluate["benchmark"]
    for document in known:
        rows = [row for row in document["rows"] if row["evaluate"].get("benchmark") == benchmark]
        alike = {**document, "rows": rows}
        if split in document["splits"] and (found := components(alike, split, "SR")) is not None:
            return found
    return ASSUMED


# how long it takes


@dataclass(frozen=True)
class Times:
    """Seconds that commands of a matrix will take, by their folders; None where nothing like them was measured.

    sources: which results they are from, and which machines.
    """

    seconds: Mapping[Path, float | None]
    sources: tuple[str, ...]


def estimate_times(
    matrix: Matrix, stages: Sequence[Stages], plans: Mapping[str, Mapping[str, Any]], known: Sequence[Document]
) -> Times:
    """From what like commands took: trainings of the checkpoint and parts, evaluations of checkpoint and split."""
    gpus = matrix.execution.devices
    found: dict[Path, float | None] = {}
    sources: dict[str, None] = {}
    for setting, of_setting in zip(matrix.settings, stages, strict=True):
        for name, stage in of_setting.by_name.items():
            if stage is of_setting.train:
                value = _train_seconds(setting, plans[setting.train_key]["steps"], gpus, known)
            else:
                value = _eval_seconds(setting, name, known)
            found[stage.folder] = None if value is None else value[0]
            if value is not None:
                sources[value[1]] = None
    return Times(found, tuple(sources))


def format_times(execution: Execution, stages: Sequence[Stages], times: Times) -> str:
    """How long what is not done will take, as far as it is known."""
    left = {
        stage.folder: times.seconds[stage.folder]
        for of_setting in stages
        for stage in of_setting
        if not stage.complete()
    }
    if not left:
        return "all trainings and evaluations are done"
    seconds = [value for value in left.values() if value is not None]
    unknown = len(left) - len(seconds)
    if not seconds:
        return f"no time is estimated for {unknown} trainings and evaluations: nothing like them was measured"
    hours, jobs = sum(seconds) / 3600, execution.jobs
    lines = f"{len(seconds)} trainings and evaluations take about {hours:.2f} hours one after the other"
    if execution.gpus_per_setting == 0 and jobs > 1:
        lines += f", {hours / jobs:.2f} if {jobs} at a time take no longer than they did"
    lines += f"; measured in {'; '.join(times.sources)}"
    return lines + (f"\n{unknown} more are like nothing that was measured" if unknown else "")


def setting_hours(stages: Stages, times: Times) -> float | None:
    """Hours of a setting's training and evaluations, None where one of them is not known."""
    found = [times.seconds[stage.folder] for stage in stages]
    known = [value for value in found if value is not None]
    return sum(known) / 3600 if len(known) == len(found) else None


_ALIKE = (
    ("checkpoint", "tunable_parts", "batch", "accumulation", "frames", "lora_rank", "gradient_checkpointing"),
    ("checkpoint", "tunable_parts", "lora_rank"),
    ("checkpoint",),
)
"""Options that trainings have in common whose windows take alike, best first."""


def _train_seconds(
    setting: Setting, steps: int | None, gpus: int, known: Sequence[Document]
) -> tuple[float, str] | None:
    """Seconds of a training by the time that a window took in like ones, and where they were measured."""
    options = setting.train
    mine = {name: _text(value) for name, value in asdict(options).items()}
    steps = steps or _steps_before(mine, known)
    if steps is None:
        return None
    windows = steps * options.batch * options.accumulation * max(1, gpus)
    for names in _ALIKE:
        for document in known:
            rates, spare = [], []
            for row in document["rows"]:
                theirs = row["options"]
                alike = all(_text(theirs.get(name)) == mine.get(name) for name in names)
                if row["status"] != "done" or not alike or not row["windows_per_s"]:
                    continue
                done = row["steps"] * theirs["batch"] * theirs["accumulation"] * _world(row)
                rates.append(row["windows_per_s"])
                spare.append(max(0.0, row["seconds"]["train"] - done / row["windows_per_s"]))
            if rates:
                return windows / statistics.median(rates) + statistics.median(spare), _source(document)
    return None


def _steps_before(mine: Mapping[str, str], known: Sequence[Document]) -> int | None:
    """The steps of a training on the same sets; they depend on these, which may not be there yet."""
    names = ("sets", "envdrop", "epochs", "steps", "steps_of", "batch", "accumulation", "frames")
    for document in known:
        for row in document["rows"]:
            if row["steps"] and all(_text(row["options"].get(name)) == mine.get(name) for name in names):
                return int(row["steps"])
    return None


def _eval_seconds(setting: Setting, split: str, known: Sequence[Document]) -> tuple[float, str] | None:
    """Seconds of an evaluation: those of the same episodes, else by the time of an episode in like ones."""
    for document in known:
        found, same = [], []
        for row in document["rows"]:
            result, seconds = row["results"].get(split), row["seconds"].get(split)
            mine = (setting.train.checkpoint, setting.evaluate["benchmark"])
            if result and seconds and (row["options"]["checkpoint"], row["evaluate"]["benchmark"]) == mine:
                found.append(seconds / result["episodes"])
                if _asked(row["evaluate"]) == _asked(setting.evaluate):
                    same.append(seconds)
        episodes = _episodes(setting, split)
        if same:
            return statistics.median(same), _source(document)
        if found and episodes:
            return statistics.median(found) * episodes, _source(document)
    return None


def _asked(evaluate: Mapping[str, Any]) -> list[str]:
    """Which episodes of a split are evaluated, and how often."""
    return [_text(evaluate.get(name)) for name in ("episodes", "repeats", *CHOICE)]


def _episodes(setting: Setting, split: str) -> int | None:
    benchmark, count = get_benchmark(setting.evaluate["benchmark"]), setting.evaluate.get("episodes")
    if Choice.of(setting.evaluate) and count is None:
        return None  # how many that are only the dataset tells
    every = count or benchmark.splits.get(split)
    return None if every is None else every * int(setting.evaluate.get("repeats", 1))


def _world(row: Mapping[str, Any]) -> int:
    return int((row.get("train") or {}).get("world_size") or 1)


def _source(document: Document) -> str:
    machines: Iterable[Mapping[str, Any]] = (row["machine"] for row in document["rows"] if row.get("machine"))
    named = dict.fromkeys(
        f"{' + '.join(each['gpus'])}" if each["gpus"] else f"{each['cores']} cores of {each['cpu']}"
        for each in machines
    )
    return f"{document['name']} on {', '.join(named) or 'an unknown machine'}"


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
