"""From files of other programs to run folders, with what was checked and what was found wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from vlnbench.data.benchmarks import Benchmark, every_benchmark, get_benchmark
from vlnbench.data.episodes import EpisodeSet, load_split
from vlnbench.errors import UsageError, unknown
from vlnbench.evaluation.choice.shape import scene_name
from vlnbench.evaluation.summary import METRICS, Summary, format_summary, shown_label
from vlnbench.importing.files import Foreign, collect
from vlnbench.importing.folder import Import, default_folder, write
from vlnbench.importing.formats import Found, ResultFormat
from vlnbench.importing.options import ImportOptions
from vlnbench.importing.scores import Imported, episode_name, read_episodes, score_remarks, total_remarks
from vlnbench.importing.submissions import named_by_instruction, scored
from vlnbench.util.progress import say

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Written:
    """A run folder that was made. remarks: what was checked and what was found wrong, a line each."""

    folder: Path
    summary: Summary
    remarks: Sequence[str]

    def __str__(self) -> str:
        checks = [f"check: {remark}" for remark in self.remarks]
        return "\n".join([format_summary(self.summary), *checks, f"rows and summary: {self.folder}"])


def import_results(paths: Sequence[Path], options: ImportOptions) -> tuple[list[Written], str]:
    """Import every evaluation at the paths: run folders, and a table of those of which there are means alone.

    All are read and checked before the first is written. Raises UsageError for whatever is not right.
    """
    if not paths:
        raise UsageError("import: expected files of results, or folders that hold them")
    names = {name for benchmark in every_benchmark() for name in benchmark.splits}
    kind, found = collect(paths, options.format, names)
    with_rows = [each for each in found if each.files]
    if options.out is not None and len(with_rows) > 1:
        listed = ", ".join(f"{each.split or 'split unknown'} {each.checkpoint}".strip() for each in with_rows)
        raise UsageError(f"--out: there are {len(with_rows)} evaluations ({listed}); name the files of one")
    ready = [_ready(kind, each, options) for each in with_rows]
    folders = [options.out or default_folder(each) for each in ready]
    made = [
        Written(folder, write(each, folder), each.remarks) for each, folder in zip(ready, folders, strict=True)
    ]
    return made, _means_alone(kind, [each for each in found if not each.files])


def _ready(kind: ResultFormat, one: Foreign, options: ImportOptions) -> Import:
    """An evaluation, read and checked."""
    benchmark = get_benchmark(options.benchmark or kind.benchmark)
    split = options.split or one.split
    if one.named and split != one.split:
        raise UsageError(f"{one.files[0]}: is of {one.split} by its name; --split {split} contradicts it")
    if not split:
        raise UsageError(f"{one.files[0]}: does not tell its split; say it with --split")
    if split not in benchmark.splits:
        raise UsageError(unknown(f"split of {benchmark.name}", split, benchmark.splits))
    found, totals = one.read(kind)
    if not found:
        raise UsageError(f"{one.files[0]}: holds no episode")
    at_hand, remarks = _at_hand(benchmark, split, options)
    if at_hand is None and not (options.split or one.named):
        remarks.append(f"that the split is {split} is told by the name of a folder alone")
    if kind.path:
        if at_hand is None:
            raise UsageError(
                f"format {kind.name} holds paths alone, which are scored with the data below --data-root"
            )
        by_id = _by_id(kind, named_by_instruction(found, at_hand.episodes))
        _check_ids(list(by_id), at_hand, benchmark)
        episodes, trajectories, more = scored(by_id, at_hand, benchmark, options.env)
    else:
        episodes, more = read_episodes(kind, found)
        trajectories = {}
    remarks += [*more, *_remarks(kind, one, episodes, at_hand, benchmark), *total_remarks(kind, episodes, totals)]
    name = options.name or kind.name
    return Import(
        kind=kind.name,
        name=f"{name}-{one.checkpoint}" if one.checkpoint else name,
        benchmark=benchmark,
        stated=bool(options.benchmark),
        split=split,
        at_hand=at_hand,
        files=[*one.files, *one.totals],
        episodes=episodes,
        remarks=remarks,
        trajectories=trajectories,
    )


def _at_hand(benchmark: Benchmark, split: str, options: ImportOptions) -> tuple[EpisodeSet | None, list[str]]:
    """The split, if it lies below the data root, and a remark on what it was good for."""
    try:
        found = load_split(benchmark, split, options.data_root, allow_partial=True)
    except UsageError as error:
        say(f"episodes are not held against the split: {error}")
        return None, ["episodes were not held against the split, which was not at hand"]
    return found, [f"every episode is one of {found.path.name}, sha256 {found.sha256[:12]}"]


def _by_id(kind: ResultFormat, found: Sequence[Found]) -> dict[str, Found]:
    paths: dict[str, Found] = {}
    for each in found:
        name = episode_name(kind, each)
        if name in paths:
            raise UsageError(f"{each.where}: episode {name} stands twice, first at {paths[name].where}")
        paths[name] = each
    return paths


def _check_ids(ids: Sequence[str], split: EpisodeSet, benchmark: Benchmark) -> None:
    known = {episode.episode_id for episode in split.episodes}
    strange = [name for name in ids if name not in known]
    if strange:
        raise UsageError(
            f"{len(strange)} of {len(ids)} episodes, {strange[0]} first, are not in {benchmark.name} "
            f"{split.split} ({split.path}); another --split or --benchmark?"
        )


def _remarks(
    kind: ResultFormat,
    one: Foreign,
    episodes: Sequence[Imported],
    at_hand: EpisodeSet | None,
    benchmark: Benchmark,
) -> Iterator[str]:
    """What is wrong with the episodes as a whole. Raises UsageError for those of another split."""
    if lost := one.missing_shards:
        more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        yield f"MISSING: shards {', '.join(lost[:_MOST_NAMED])}{more}"
    known = {}
    if at_hand is not None:
        _check_ids([each.episode_id for each in episodes], at_hand, benchmark)
        known = {episode.episode_id: episode for episode in at_hand.episodes}
        for each in episodes:
            scene = scene_name(known[each.episode_id].scene_id)
            if each.scene and scene_name(each.scene) != scene:
                raise UsageError(
                    f"{each.where}: field {kind.scene!r}: is {each.scene}, but episode {each.episode_id} of "
                    f"{benchmark.name} {at_hand.split} is in {scene}; another --split or --benchmark?"
                )
        there = {each.episode_id for each in episodes}
        missing = [name for name in known if name not in there]
        if missing:
            yield f"MISSING: {len(missing)} of {len(known)} episodes of the split, {missing[0]} first"
    if not kind.path:
        yield from score_remarks(episodes, known, benchmark.success_distance_m)


def _means_alone(kind: ResultFormat, found: Sequence[Foreign]) -> str:
    """A table of evaluations of which there are no episodes; empty where there is none."""
    if not found:
        return ""
    rows = []
    for each in found:
        last = each.read(kind)[1][-1]
        means = {
            ours: value for theirs, ours in kind.totals.items() if (value := last.fields.get(theirs)) is not None
        }
        rows.append(
            [each.split, each.checkpoint, *(_shown(means.get(metric.field), metric.scale) for metric in METRICS)]
        )
    headers = ["split", "checkpoint", *map(shown_label, METRICS)]
    say("means alone, without episodes: no interval, nothing to pair, and nothing is written")
    return str(tabulate(rows, headers=headers, disable_numparse=True))


def _shown(value: object, scale: float) -> str:
    return f"{value * scale:.2f}" if isinstance(value, int | float) else "-"
