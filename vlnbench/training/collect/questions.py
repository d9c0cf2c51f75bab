"""Make a set of questions about views of the generated train houses, resumable.

The folder is a set in LLaVA's layout (`conversations.json`, `images/<house>/NNNN.jpg`), one record per view with
all its questions; with depth, `depth/<house>/NNNN.png` (16 bits, millimeters); with semantics,
`semantic/<house>/NNNN.png`, whose channels are numbers of the names in `categories.json`. Beside these lie
`questions.json` (what is being made) and `questions.jsonl` (a line per finished house): running the same command
again goes on where it ended. `conversations.json` is written last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tabulate import tabulate

from vlnbench.data.benchmarks import get_benchmark
from vlnbench.data.generate import ensure_data
from vlnbench.data.generator import ViewSource, generator_of
from vlnbench.data.sets import CATEGORIES, CONVERSATIONS
from vlnbench.defaults import ENV, SIMULATOR
from vlnbench.errors import UsageError
from vlnbench.interfaces import Embodiment, Env, Episode
from vlnbench.rollout.executor import prepare
from vlnbench.training.collect.collect import resized
from vlnbench.training.collect.options import QuestionsOptions
from vlnbench.training.collect.walk import JPEG_QUALITY, depth_png, jpeg, png
from vlnbench.util.durable.files import append_line, open_for_append, read_jsonl, write_bytes
from vlnbench.util.durable.folder import Kind, open_folder
from vlnbench.util.loading import import_string
from vlnbench.util.processes.pool import processes
from vlnbench.util.progress import Progress, say

FORMAT = 1
MANIFEST, JOURNAL = "questions.json", "questions.jsonl"
KIND = Kind("set of questions", MANIFEST)


@dataclass(frozen=True, slots=True)
class SetSize:
    """What a folder holds."""

    scenes: int
    views: int
    questions: int
    bytes: int


def make_questions(options: QuestionsOptions) -> SetSize:
    """Look around in every train house and write what is seen with questions and answers.

    Raises UsageError, with nothing written, for bad options, broken data and a folder that holds something else.
    """
    options.check()
    benchmark = get_benchmark(options.benchmark)
    generator = generator_of(benchmark)
    body = resized(benchmark.body, options.frame_width)
    ensure_data(benchmark, options.data_root, "train")
    source = generator.view_source(options.data_root)
    counts = _counts(source.scenes(), options.views)
    with ExitStack() as stack:
        stack.enter_context(open_folder(options.out, KIND, _manifest(options, body, source)))
        records = _look_around(options, body, counts)
        content = json.dumps([each for house in counts for each in records[house]], ensure_ascii=False)
        made = _verify(options, counts, records)
        if options.semantic:
            write_bytes(options.out / CATEGORIES, (json.dumps(source.categories) + "\n").encode())
        write_bytes(options.out / CONVERSATIONS, (content + "\n").encode())
    return made


def format_made(made: SetSize, out: Path) -> str:
    """Table of what was made."""
    rows: list[list[object]] = [
        ["scenes", made.scenes],
        ["views", made.views],
        ["questions", made.questions],
        ["MB", round(made.bytes / 1e6, 1)],
    ]
    return f"{tabulate(rows)}\nconversations: {out / CONVERSATIONS}"


def _counts(scenes: list[str], views: int) -> dict[str, int]:
    """How many views each house shows."""
    each, more = divmod(views, len(scenes))
    counts = {house: each + (i < more) for i, house in enumerate(scenes)}
    return {house: count for house, count in counts.items() if count}


def _manifest(options: QuestionsOptions, body: Embodiment, source: ViewSource) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **source.identity,
        "views": options.views,
        "seed": options.seed,
        "simulator": SIMULATOR,
        "frame": [body.camera.width, body.camera.height],
        "jpeg_quality": JPEG_QUALITY,
        **({"depth": True} if options.depth else {}),
        **({"semantic": True} if options.semantic else {}),
    }


def _look_around(
    options: QuestionsOptions, body: Embodiment, counts: Mapping[str, int]
) -> dict[str, list[dict[str, Any]]]:
    """Records of every house; houses that the journal does not hold are looked at."""
    path = options.out / JOURNAL
    done = {entry["house"]: entry["records"] for _, entry in read_jsonl(path)}
    todo = [house for house in counts if house not in done]
    say(f"{len(counts)} scenes, {len(counts) - len(todo)} of them seen before; folder {options.out}")
    views = sum(counts[house] for house in done)
    with (
        processes(options.workers, _start_process, options, body) as executor,
        open_for_append(path) as journal,
        Progress("looking at views") as progress,
    ):
        waiting = [executor.submit(_look_in_process, house, counts[house]) for house in todo]
        for future in as_completed(waiting):
            house, records = future.result()
            append_line(journal, {"house": house, "records": records})
            done[house] = records
            views += len(records)
            progress.update(views, options.views)
    return done


def _verify(
    options: QuestionsOptions, counts: Mapping[str, int], records: Mapping[str, list[dict[str, Any]]]
) -> SetSize:
    """Count what lies in the folder against the plan. Raises UsageError naming what is missing."""
    questions = size = 0
    for house, count in counts.items():
        for kind in _kinds(options):
            files = [_image(options.out, kind, house, number) for number in range(count)]
            found = [file.stat().st_size for file in files if file.is_file()]
            if len(found) != count or len(records[house]) != count:
                raise UsageError(
                    f"{options.out / kind / house}: {len(found)} images and {len(records[house])} records, "
                    f"expected {count}; delete {options.out / JOURNAL} and make the set again"
                )
            size += sum(found)
        questions += sum(len(record["conversations"]) // 2 for record in records[house])
    return SetSize(len(counts), sum(counts.values()), questions, size)


def _kinds(options: QuestionsOptions) -> list[str]:
    """Folders of images that a set has."""
    return ["images", *(["depth"] if options.depth else []), *(["semantic"] if options.semantic else [])]


def _image(folder: Path, kind: str, house: str, number: int) -> Path:
    return folder / kind / house / f"{number:04d}.{'jpg' if kind == 'images' else 'png'}"


_setting: tuple[QuestionsOptions, Embodiment] | None = None
"""What a process looks at houses for, and with which body."""


def _start_process(options: QuestionsOptions, body: Embodiment) -> None:
    global _setting
    _setting = options, body


def _source(options: QuestionsOptions) -> ViewSource:
    return generator_of(get_benchmark(options.benchmark)).view_source(options.data_root)


@cache
def _environment() -> Env:
    """One environment for all houses of a process."""
    assert _setting is not None
    options, body = _setting
    scenes = _source(options).scenes_dir
    seen = frozenset({"rgb", "depth"} if options.depth or options.semantic else {"rgb"})
    env: Env = import_string(ENV)(body, scenes, seen, SIMULATOR)
    prepare(env)
    return env


def _look_in_process(house: str, count: int) -> tuple[str, list[dict[str, Any]]]:
    """Write the images of a house; returns its name and its records."""
    assert _setting is not None
    options, body = _setting
    source = _source(options)
    scene, views = source.views(house, options.seed, count)
    semantics = source.semantics(house) if options.semantic else None
    records = []
    for number, view in enumerate(views):
        observation = _environment().reset(Episode("0", "0", scene, view.position, view.rotation, ""))
        assert observation.rgb is not None
        files, pairs = {"images": jpeg(observation.rgb)}, dict(view.pairs)
        if observation.depth is not None and options.depth:
            files["depth"] = depth_png(observation.depth)
        if semantics is not None:
            assert observation.depth is not None
            shown, further = semantics(view, observation.depth, body.depth_range_m[1])
            files["semantic"] = png(shown)
            pairs.update(further)
        for kind, content in files.items():
            path = _image(options.out, kind, house, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # a link in a folder of others leads to any file
            path.write_bytes(content)
        image = _image(options.out, "images", house, number).relative_to(options.out).as_posix()
        records.append({"id": f"{house}_{number:04d}", "image": image, "conversations": _turns(pairs)})
    return house, records


def _turns(pairs: Mapping[str, str]) -> list[dict[str, str]]:
    turns: list[dict[str, str]] = []
    for question, answer in pairs.items():
        tag = "" if turns else "<image>\n"
        turns += [{"from": "human", "value": tag + question}, {"from": "gpt", "value": answer}]
    return turns
