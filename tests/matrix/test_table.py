from __future__ import annotations

import csv
import io
import json
import math
import random
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.matrix.documents import make_document
from vlnbench.cli import main
from vlnbench.evaluation.stats import estimate
from vlnbench.matrix.plots import (
    CPU,
    HOST,
    MEASURED,
    PLANNED,
    WALL,
    costs_figure,
    effects_figure,
    memory_axis,
    memory_figure,
    memory_points,
    pareto,
)
from vlnbench.matrix.rows import cpu_ms_per_window
from vlnbench.matrix.sheet import main_sheet
from vlnbench.matrix.spec import read_matrix
from vlnbench.matrix.statistics.effects import effects, mean, over_seeds, spread
from vlnbench.matrix.statistics.tables import effects_csv
from vlnbench.matrix.table import markdown
from vlnbench.util.tables.sheet import written

RESULTS = Path(__file__).parents[2] / "results"
AXES = {"parts": ["vision", "all"], "data": ["R2R", "both"], "seed": ["seed=0", "seed=1"]}


@pytest.mark.slow
def test_tables_and_plots_come_from_the_document_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Made twice, in different folders, from nothing but matrix.json: the same bytes."""
    document = make_document(AXES, failed=(1,))
    folders = (tmp_path / "a", tmp_path / "b")
    for folder in folders:
        folder.mkdir()
        (folder / "matrix.json").write_text(json.dumps(document))
        assert main(["matrix", "table", str(folder)]) == 0
    names = [
        "effects.csv",
        "effects.png",
        "effects.svg",
        "matrix.csv",
        "matrix.json",
        "matrix.md",
        "sr_vs_vram.png",
    ]
    assert sorted(path.name for path in folders[0].iterdir()) == [*names, "sr_vs_vram.svg"]
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes(), path.name
    assert "vision, R2R, seed=0" in capsys.readouterr().out
    assert main(["matrix", "table", str(tmp_path)]) == 2
    assert "matrix.json: not there" in capsys.readouterr().err


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(path.parent, id=path.parent.name, marks=[pytest.mark.slow] * (path.stat().st_size > 10**6))
        for path in RESULTS.glob("*/matrix.json")
    ],
)
def test_committed_tables_come_from_their_document(folder: Path) -> None:
    document = json.loads((folder / "matrix.json").read_text())
    assert (folder / "matrix.csv").read_text() == written(main_sheet(document), "csv") + "\n"
    committed, found = (list(csv.reader(io.StringIO(text))) for text in (_effects(folder), effects_csv(document)))
    assert [len(row) for row in committed] == [len(row) for row in found]
    for row, other in zip(committed, found, strict=True):
        assert all(map(_same, row, other)), (row, other)
    assert (folder / "matrix.md").read_text() == markdown(document)
    settings = read_matrix(RESULTS / "matrices" / f"{folder.name}.yaml").settings
    assert [row["name"] for row in document["rows"]] == [setting.name for setting in settings]


def _effects(folder: Path) -> str:
    return (folder / "effects.csv").read_text()


def _same(one: str, other: str) -> bool:
    """Equal, or numbers whose last digits depend on the processor and the versions of numpy and scipy."""
    if one == other:
        return True
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6, abs_tol=1e-9)
    except ValueError:
        return False


def test_csv_has_every_row_with_nothing_for_what_is_missing() -> None:
    document = make_document(AXES, failed=(1,))
    rows = list(csv.DictReader(io.StringIO(written(main_sheet(document), "csv"))))
    assert len(rows) == 8
    first, failed = rows[0], rows[1]
    assert float(first["val_seen SR"]) == document["rows"][0]["results"]["val_seen"]["metrics"]["SR"]["mean"]
    assert first["vram_allocated_bytes"] == ""
    assert float(first["vram_planned_bytes"]) == document["rows"][0]["vram"]["planned"]
    assert (failed["status"], failed["exit_code"], failed["val_seen SR"]) == ("oom", "3", "")
    assert failed["data"] == "R2R 30 instructions on 10 trajectories, 40 windows"


def test_data_of_walks_in_simulators_are_told() -> None:
    document = make_document(AXES)
    document["rows"][0]["data"] = {"episodes": 9000, "group": 8}
    document["rows"][1]["data"] |= {"prompts_per_update": 4}
    first, second, *_ = csv.DictReader(io.StringIO(written(main_sheet(document), "csv")))
    assert first["data"] == "episodes 9,000; group 8"
    assert second["data"] == "R2R 30 instructions on 10 trajectories, 40 windows; prompts per update 4"
    [shown] = [line for line in markdown(document).splitlines() if "| episodes 9,000 |" in " ".join(line.split())]
    assert "group" not in shown


def test_sets_are_counted_in_the_words_of_their_family() -> None:
    document = make_document(AXES)
    counted = {"walks": 20, "instructions": 40, "relabeled": 15, "conversations": 0, "windows": 20, "weight": 2.0}
    document["rows"][0]["data"] = {"DAgger": counted}
    first, *_ = csv.DictReader(io.StringIO(written(main_sheet(document), "csv")))
    assert first["data"] == "DAgger 40 instructions on 20 walks, 15 relabeled, 20 windows x 2"
    assert "DAgger 40 x 2" in markdown(document)


def test_markdown_has_rows_seeds_effects_and_failures() -> None:
    text = markdown(make_document(AXES, failed=(1,)))
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert sum("vision, R2R, seed=" in line for line in table) == 2
    assert "| vision, R2R | 1 of 2 |" in " ".join(text.split())
    assert "## Effects" in text
    assert "out of GPU memory" in text
    assert "    some | line\n    ```" in text
    assert len({line.count("|") for line in table if "seed=" in line}) == 1


def test_no_text_is_a_formula_or_breaks_a_table() -> None:
    document = make_document(AXES)
    document["rows"][0]["name"] = "=cmd|x\n<b>"
    document["name"] = "# <script>"
    read = list(csv.DictReader(io.StringIO(written(main_sheet(document), "csv"))))
    assert read[0]["setting"] == "'=cmd|x <b>"
    lines = markdown(document).splitlines()
    assert lines[0] == "# \\# &lt;script&gt;"
    [row] = [line for line in lines if "=cmd" in line and "trained" not in line and "| done" in line]
    assert "=cmd\\|x &lt;b&gt;" in row
    header = next(line for line in lines if "trained (M)" in line)
    assert row.replace("\\|", "").count("|") == header.count("|")


def test_effects_are_paired_over_the_other_axes() -> None:
    document = make_document(AXES, failed=(4,))
    found = {(effect.axis, effect.label): effect for effect in effects(document, "val_seen", "SR")}
    assert set(found) == {("parts", "all"), ("data", "both")}
    value = {row["name"]: mean(row, "val_seen", "SR") for row in document["rows"]}
    pairs = ("R2R, seed=1", "both, seed=0", "both, seed=1")  # the fourth ran out of memory
    expected = [(value[f"all, {pair}"] or 0) - (value[f"vision, {pair}"] or 0) for pair in pairs]
    assert found["parts", "all"].differences == pytest.approx(expected)


def test_effects_have_the_interval_of_their_episodes() -> None:
    """As if the differences of single episodes, averaged over the pairs, were estimated by scene."""
    rng = random.Random(0)
    document = make_document({"data": ["R2R", "both"], "zero": ["a", "b"]})
    rows = {row["name"]: row for row in document["rows"]}
    scenes = [scene for i, scene in enumerate("abcde", start=2) for _ in range(i)]
    scores = {name: [float(rng.random() < 0.5) for _ in scenes] for name in rows}
    for name, row in rows.items():
        sums = {scene: [scenes.count(scene), 0.0] for scene in scenes}
        for scene, score in zip(scenes, scores[name], strict=True):
            sums[scene][1] += score
        row["results"]["val_seen"]["scenes"]["SR"] = sums
    (found, _) = effects(document, "val_seen", "SR")
    columns = zip(scores["both, a"], scores["R2R, a"], scores["both, b"], scores["R2R, b"], strict=True)
    differences = [(a - b + c - d) / 2 for a, b, c, d in columns]
    expected = estimate(differences, scenes)
    assert found.estimate is not None
    assert expected is not None
    assert asdict(found.estimate) == pytest.approx(asdict(expected))
    del rows["both, a"]["results"]["val_seen"]["scenes"]["SR"]["a"]
    assert effects(document, "val_seen", "SR")[0].estimate is None


def test_seeds_have_mean_and_spread() -> None:
    groups = over_seeds(make_document(AXES)["rows"])
    assert (groups[0][0], len(groups[0][1])) == ("vision, R2R", 2)
    assert len(groups) == 4
    found = spread([1.0, None, 3.0])
    assert found is not None
    assert (found.n, found.mean, found.deviation) == (2, 2.0, pytest.approx(2**0.5))
    single = spread([1.0])
    assert single is not None
    assert single.deviation is None
    assert spread([None]) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_the_front_is_what_nothing_beats(points: list[tuple[float, float]]) -> None:
    front = pareto(points)
    for i in front:
        assert not any(x <= points[i][0] and y >= points[i][1] and (x, y) != points[i] for x, y in points)
    for i, (x, y) in enumerate(points):
        assert i in front or any(points[j][0] <= x and points[j][1] >= y for j in front)


def test_the_axis_says_what_memory_it_is() -> None:
    assert memory_axis(make_document(AXES, measured=True))[0] == MEASURED
    document = make_document(AXES)
    assert memory_axis(document)[0] == PLANNED
    for row in document["rows"]:
        row["vram"]["planned"] = None
    assert memory_axis(document) == (HOST, [3.0] * 8)


@pytest.mark.parametrize(("more", "spans"), [(0.0, None), (0.005, None), (0.02, 0.2), (1.0, 0.5)])
def test_memory_that_hardly_differs_looks_alike(more: float, spans: float | None) -> None:
    """And where there is nothing to tell apart there is no plot, nor one of an earlier table."""
    document = make_document(AXES)
    for number, row in enumerate(document["rows"]):
        row["vram"]["planned"] = 2e9 * (1 + more * (number >= 4))
    figure = memory_figure(document)
    if spans is None:
        assert figure is None
        return
    assert figure is not None
    low, high = figure.axes[0].get_xlim()
    assert low < 2
    assert 2 * (1 + more) < high
    assert high - low >= 0.999 * spans * 2 * (1 + more)


def test_points_of_several_seeds_are_one() -> None:
    _, points = memory_points(make_document(AXES), "val_unseen")
    assert [point.number for point in points] == [1, 2, 3, 4]
    for point in points:
        assert point.low is not None
        assert point.low < point.value


def test_settings_of_one_memory_stand_side_by_side() -> None:
    document = make_document(AXES, failed=(0, 3))
    document["rows"][3]["status"] = "pending"
    for number, row in enumerate(document["rows"]):
        row["vram"]["planned"] = 2e9 if number < 6 else 4e9
    figure = memory_figure(document)
    assert figure is not None
    drawn = [point[0] for group in figure.axes[0].collections for point in group.get_offsets() if len(point) == 2]
    assert len({round(x, 6) for x in drawn if 1.9 < x < 2.1}) == 3
    told = "bars: standard deviation over seeds; points side by side: alike in memory"
    assert figure.legends[0].get_title().get_text() == told
    (key,) = (text.get_text().splitlines() for text in figure.axes[-1].texts)
    assert key[0] == "1  vision, R2R (1 of 2 seeds, oom)"
    assert key[1] == "2  vision, both (1 of 2 seeds)"
    assert key[2] == "3  all, R2R"


def test_a_legend_of_many_names_is_not_cut_off() -> None:
    """Numbers of neighbors stand above and below in turn, and the front leads through the points."""
    names = [f"9,000 walks + {'other looks' * (i % 2)} number {i}" for i in range(10)]
    figure = memory_figure(make_document({"parts": ["vision", "all"], "data": names}))
    assert figure is not None
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.width
    axis = figure.axes[0]
    assert {text.get_va() for text in axis.texts if text.get_text().isdigit()} == {"bottom", "top"}
    (front,) = (line for line in axis.lines if line.get_label() == "Pareto front")
    drawn = {tuple(point) for group in axis.collections for point in group.get_offsets() if len(point) == 2}
    assert {(x, y) for x, y in zip(*front.get_data(), strict=True)} <= drawn


def test_costs_of_several_seeds_are_their_median() -> None:
    document = make_document({"lever": ["base", "other"], "seed": ["s0", "s1", "s2"]})
    for row, cost in zip(document["rows"], (10.0, 90.0, 11.0, 20.0, 21.0, 22.0), strict=True):
        row["cpu_ms_per_window"] = cost
    figure = costs_figure(document)
    assert figure is not None
    assert [bar.get_width() for bar in figure.axes[0].patches] == [11.0, 21.0]
    assert {(text.get_text(), text.xy[0]) for text in figure.axes[0].texts} == {("11", 1), ("21", 1)}, "of bars"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["base", "other"]


def test_costs_are_shown_where_trainings_tell_them() -> None:
    document = make_document({"lever": ["base", "other", "failed"]}, failed=(2,))
    assert costs_figure(document) is None, "documents of older versions"
    for number, row in enumerate(document["rows"][:2]):
        row |= {"cpu_ms_per_window": 10.0 + 5 * number, "phases": {"load": 1.0, "backward": 3.0}}
        row |= {"memory_spread": None, "feature_cache": {"found": 3, "frames": 4}}
    figure = costs_figure(document)
    assert figure is not None
    time, planned, host = figure.axes
    assert [bar.get_width() for bar in time.patches] == [10.0, 15.0]
    assert time.get_xlabel() == CPU
    assert [label.get_text() for label in time.get_yticklabels()] == ["base", "other"]
    assert "not measured" in planned.get_xlabel()
    assert [bar.get_width() for bar in host.patches] == [3.0, 3.0]
    assert "| other     |                15.0 |         25 |             75 |                 75.0 |" in markdown(
        document
    )
    assert written(main_sheet(document), "csv").splitlines()[2].count(",15.0,") == 1
    measured = make_document({"lever": ["base", "other"]}, measured=True)
    for row in measured["rows"]:
        row["cpu_ms_per_window"] = 1.0
    figure = costs_figure(measured)
    assert figure is not None
    assert figure.axes[0].get_xlabel() == WALL


def test_cpu_time_per_window_is_a_median_over_the_log() -> None:
    log = [{"step": 4, "cpu_seconds": 9.0}, {"step": 8, "cpu_seconds": 0.8}, {"step": 10, "cpu_seconds": 0.6}]
    assert cpu_ms_per_window(log, windows_per_step=2) == 150.0  # of 1125, 100 and 150
    assert cpu_ms_per_window([{"step": 4}], 2) is None
    assert cpu_ms_per_window([], 2) is None


def test_a_matrix_of_costs_alone_has_no_results() -> None:
    """`splits: []`: trainings are timed and nothing is evaluated."""
    document = make_document({"lever": ["base", "other"]})
    document["splits"] = []
    for row in document["rows"]:
        row |= {"results": {}, "seconds": {"train": 60.0}, "cpu_ms_per_window": 2.0, "phases": {"load": 1.0}}
        row |= {"memory_spread": None, "feature_cache": None}
    shown = markdown(document)
    assert "SR" not in shown
    assert "## Effects" not in shown
    assert "| other     |                 2.0 |        100 |" in shown
    assert effects_csv(document).count("\n") == 1
    assert costs_figure(document) is not None


def test_peaks_of_gpus_are_told_by_phase_where_they_are_known() -> None:
    document = make_document(AXES)
    assert "Memory of the GPU by phase" not in markdown(document)
    document["rows"][0]["vram"] |= {"phases": {"load": 16 * 10**9, "evaluation": 21 * 10**9}, "card": 40 * 10**9}
    lines = markdown(document).partition("## Memory of the GPU by phase")[2].splitlines()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert table[0] == ["setting", "load", "evaluation", "whole card"]
    assert [row[1:] for row in table[2:4]] == [["16.00", "21.00", "40.00"], ["-", "-", "-"]]
    first, second = list(csv.DictReader(io.StringIO(written(main_sheet(document), "csv"))))[:2]
    assert (first["vram_load_bytes"], first["vram_card_bytes"]) == ("16000000000", "40000000000")
    assert second["vram_load_bytes"] == ""


def test_the_main_table_is_printed_in_a_format_and_marks_what_is_not_told_from_the_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = RESULTS / "tunable_parts_x_envdrop"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert main(["matrix", "table", str(folder), "--format", "latex"]) == 0
    rows = [line.split(" & ") for line in capsys.readouterr().out.splitlines() if line.count(" & ") > 5]
    column = rows[0].index("val seen SR")
    cells = {row[1]: row[column] for row in rows[1:]}
    means = {
        name: float(cell.removeprefix("\\textbf{").partition(" ")[0].rstrip("}")) for name, cell in cells.items()
    }
    settings = {name for name in cells if not name.startswith("reference")}
    best = max(settings, key=lambda name: means[name])
    marked = {name for name, cell in cells.items() if cell.startswith("\\textbf")}
    assert best in marked < settings
    assert min(means[name] for name in marked) > min(means[name] for name in settings - marked)
    assert main(["matrix", "table", str(folder), "--format", "json"]) == 0
    document = json.loads((folder / "matrix.json").read_text())
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [row["setting"] for row in found][: len(document["rows"])] == [row["name"] for row in document["rows"]]
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_plot_of_effects_names_its_splits_where_the_first_label_has_no_pairs() -> None:
    """As in a matrix that is half run."""
    axes = {"parts": ["projector", "vision", "all"], "seed": ["seed=0", "seed=1"]}
    document = make_document(axes, failed=(2, 3))
    figure = effects_figure(document)
    assert figure is not None
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == document["splits"]


@pytest.mark.parametrize("name", ["pilot_shift", "tunable_parts_x_data"])
def test_plot_of_effects_says_what_its_intervals_are_over(name: str) -> None:
    """One training of a setting tells nothing of others."""
    figure = effects_figure(json.loads((RESULTS / name / "matrix.json").read_text()))
    assert figure is not None
    given = "trainings taken as given" in figure.axes[0].get_xlabel()
    assert given == (name == "pilot_shift")
