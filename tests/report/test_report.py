from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.fakes import PlaneEnv, make_episode
from tests.report.made import Page, entry_of, random_run, random_walks, run_data, walk
from tests.runs import BreaksOnFive, record, write_dataset
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.shape import corners
from vlnbench.evaluation.columns.read import table_of
from vlnbench.evaluation.costs import part_seconds
from vlnbench.evaluation.records import PARTS, Row
from vlnbench.interfaces import Episode, TopDownMap
from vlnbench.report import build
from vlnbench.report.breakdowns import breakdowns
from vlnbench.report.data import RunData, read_run
from vlnbench.report.maps import METERS_PER_PIXEL, scene_storeys, storeys
from vlnbench.report.page import SCRIPTS, asset, render
from vlnbench.report.walks import encode_path
from vlnbench.rollout.episode import StepTimes

NASTY = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> &lt; \u2028 ' \" \\ "


def page_of(data: RunData) -> str:
    return render(data, scene_storeys(data.entries), {}, {})


class Plane(PlaneEnv):
    """Free within a rectangle from (-1, -10) to (1, 1), on the lower floor only."""

    def top_down_map(self, height: float, meters_per_pixel: float = 0.05) -> TopDownMap:
        free = np.zeros((240, 60), dtype=bool)
        free[20:, 10:50] = height < 1.0
        return TopDownMap(free, (-1.5, -11.0), meters_per_pixel)


class NoScenes(PlaneEnv):
    def check(self, episodes: Sequence[Episode]) -> None:
        raise UsageError(f"no scene {episodes[0].scene_id}")


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data")


@pytest.fixture
def run(data_root: Path, tmp_path: Path) -> Path:
    """A run of a random agent in which one episode broke."""
    record(data_root, BreaksOnFive(), tmp_path / "run")
    return tmp_path / "run"


def use(monkeypatch: pytest.MonkeyPatch, env: type[PlaneEnv]) -> None:
    monkeypatch.setattr(build, "make_env", lambda *_: env())


def test_a_run_becomes_one_page(
    run: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Plane)
    assert main(["report", str(run), "--data-root", str(data_root)]) == 0
    assert f"9 episodes, 0.1 MB: {run / 'report.html'}\n" == capsys.readouterr().out
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    assert [scene["name"] for scene in page.payload["scenes"]] == ["a", "b", "c"]
    [storey] = page.payload["scenes"][0]["storeys"]
    assert storey["box"] == [-100, -1000, 200, 1100]
    picture = Image.open(io.BytesIO(base64.b64decode(storey["png"])))
    assert (picture.size, picture.getextrema()) == ((40, 220), (255, 255))
    episodes = {episode["id"]: episode for episode in page.payload["episodes"]}
    assert len(episodes) == 9
    assert episodes["4"]["text"] == "Walk 6.0 meters ahead."
    assert episodes["4"]["goals"] == [[0, 0, -600]]
    assert page.payload["kinds"][episodes["5"]["kind"]]["name"] == "error"
    assert "the fifth is too much" in episodes["5"]["reason"]
    assert "path" not in episodes["5"]
    assert "not at hand" not in page.text


def test_scenes_that_are_absent_leave_the_maps_out(
    run: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, NoScenes)
    assert main(["report", str(run), "--data-root", str(data_root)]) == 0
    captured = capsys.readouterr()
    assert "left out: Maps of all scenes" in captured.out
    assert "no scene a/a.glb" in captured.err
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    assert "Maps of all scenes: not at hand" in page.text
    assert page.payload["scenes"][0]["storeys"] == [{"y": 0}]


def test_a_run_folder_alone_makes_a_page(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    (run / "episodes.jsonl").write_bytes(b"".join((run / "episodes.jsonl").read_bytes().splitlines(True)[:7]))
    assert main(["report", str(run), "--data-root", str(tmp_path / "nowhere"), "--out", str(out)]) == 0
    assert "left out: Instructions, goals and reference paths" in capsys.readouterr().out
    page = Page(out.read_text(encoding="utf-8"))
    assert "7 of 9 planned episodes" in page.text
    assert "partial: the run is not finished" in page.text
    assert all("text" not in episode for episode in page.payload["episodes"])
    assert str(tmp_path) not in out.read_text(encoding="utf-8")


def test_a_page_of_very_many_episodes_shows_the_first_and_counts_all(
    run: Path, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_run(run, data_root)
    monkeypatch.setattr("vlnbench.report.data.MOST_EPISODES", 4)
    data = read_run(run, data_root)
    assert [entry.row for entry in data.entries] == [entry.row for entry in whole.entries[:4]]
    assert all(entry.walk is not None for entry in data.entries)
    assert data.summary == whole.summary
    assert breakdowns(data) == breakdowns(whole)
    built = build.build_report(run, tmp_path / "page.html", tmp_path / "none")
    assert built.count == 9
    assert any("only the first 4" in note for note in built.notes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: not a run folder"),
        (["RUN", "--out", "no/such/page.html"], "there is no folder no/such"),
        (["RUN", "--video", "-1"], "--video -1: expected 0 or more"),
        (["RUN", "--video", "1"], "--video: videos cannot be made without the dataset"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(run.iterdir())
    assert main(["report", *(str(run) if part == "RUN" else part for part in arguments)]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(run.iterdir()) == before


def test_a_run_without_rows_is_refused(run: Path, data_root: Path) -> None:
    (run / "episodes.jsonl").write_text("")
    with pytest.raises(UsageError, match="no episode has finished yet"):
        build.build_report(run, None, data_root)


def test_videos_of_the_run_come_first(run: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Plane)
    monkeypatch.setattr(build, "write_video", lambda path, *_: path.write_bytes(b"made"))
    (run / "videos").mkdir()
    (run / "videos" / "7-0.mp4").write_bytes(b"there before")
    built = build.build_report(run, None, data_root, video=2)
    episodes = Page(built.path.read_text(encoding="utf-8")).payload["episodes"]
    videos = {e["id"]: base64.b64decode(e["video"]) for e in episodes if "video" in e}
    assert len(videos) == 2
    assert videos.pop("7") == b"there before"
    assert list(videos.values()) == [b"made"]


@pytest.mark.parametrize("in_the_way", ["videos", "videos/7-0.mp4/", "videos/.7-0.mp4.part.mp4/"])
def test_a_video_that_cannot_be_written_is_one_line(
    in_the_way: str, run: Path, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Plane)
    monkeypatch.setattr(build, "choose", lambda entries, *_: [e for e in entries if e.row.episode_id == "7"])
    if in_the_way.endswith("/"):
        (run / in_the_way).mkdir(parents=True)
    else:
        (run / in_the_way).write_text("")
    with pytest.raises(UsageError, match=r"7-0\.mp4: cannot be written \(.+\)$") as caught:
        build.build_report(run, None, data_root, video=1)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_1839_episodes_stay_small() -> None:
    page = page_of(random_run(1839))
    assert len(page.encode()) < 4e6
    assert len(Page(page).payload["episodes"]) == 1839


def test_nothing_is_fetched_and_only_the_pages_own_script_runs() -> None:
    text = page_of(random_run(3))
    page = Page(text)
    assert set(re.findall(r"\w+://[^\"'\s)]*", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    [policy] = [a["content"] for t, a in page.elements if t == "meta" and a.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for kind, content in (("script", page.scripts[1]), ("style", page.styles[0])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert "url(" not in page.styles[0]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|fetch\(", page.scripts[1])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text() | st.just(NASTY), min_size=4, max_size=4))
def test_whatever_a_text_holds_it_stays_text(texts: list[str]) -> None:
    text, agent, scene, reason = texts
    scene = scene.replace("/", "")
    episode = replace(make_episode(0, scene=scene), instruction=text, language=text)
    broken = replace(make_episode(1, scene=scene), instruction=text)
    entries = [entry_of(episode, walk(episode, [1, 0])), entry_of(broken, None, status="error", reason=reason)]
    page = Page(page_of(run_data(entries, agent=agent)))
    plain = [replace(entry, row=replace(entry.row, scene_id="s/s.glb")) for entry in entries]
    if text != "en":  # two languages make one more table
        plain[0] = replace(plain[0], episode=replace(episode, language="xx"))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in Page(page_of(run_data(plain))).elements]
    assert len(page.scripts) == 2
    first, second = page.payload["episodes"]
    assert (first["text"], second["reason"]) == (text, reason)
    assert page.payload["scenes"][0]["name"] == (scene or "/.glb")


def test_paths_keep_their_place_to_the_centimeter() -> None:
    rng = np.random.default_rng(0)
    points = np.cumsum(rng.uniform(-0.25, 0.25, (300, 3)), axis=0)
    flat, level = encode_path(points)
    decoded = np.cumsum(np.array(flat).reshape(-1, 2), axis=0) / 100
    assert np.abs(decoded - points[:, [0, 2]]).max() <= 0.005 + 1e-9
    assert np.abs(np.cumsum(level) / 100 - points[:, 1]).max() <= 0.005 + 1e-9
    points[:, 1] = 0.1
    assert encode_path(points)[1] == [10]


def test_breakdowns_split_the_run() -> None:
    data = random_run(200)
    found = {breakdown.title: breakdown for breakdown in breakdowns(data)}
    assert list(found) == ["Scene", "Path length", "Instruction length", "Turns"]
    total = data.summary.metrics["SR"]
    assert total is not None
    for breakdown in found.values():
        parts = [(group.n, group.estimates["SR"]) for group in breakdown.groups]
        assert sum(n for n, _ in parts) == 200
        assert sum(n * rate.mean for n, rate in parts if rate) / 200 == pytest.approx(total.mean, abs=1e-12)
        for group in breakdown.groups:
            rate = group.estimates["SR"]
            assert rate is not None
            assert rate.mean * group.n == pytest.approx(group.endings["success"], abs=1e-9)
    lengths = [group.label for group in found["Path length"].groups]
    assert lengths == ["under 5 m", "5 to 7.5 m", "7.5 to 10 m", "10 to 12.5 m", "12.5 to 15 m", "15 m and over"]
    assert [group.label for group in found["Turns"].groups] == ["none"]
    assert all(group.estimates["SR"].clusters > 1 for group in found["Scene"].groups)  # by reference path


def test_bins_leave_their_upper_edge_to_the_next() -> None:
    entries = []
    for i, distance in enumerate((4.75, 5.0, 7.25, 7.5)):
        episode = make_episode(i, scene="ab"[i % 2], distance=distance)
        entries.append(entry_of(episode, walk(episode, [1, 0])))
    groups = breakdowns(run_data(entries))[1].groups
    assert [(group.label, group.n) for group in groups] == [
        ("under 5 m", 1),
        ("5 to 7.5 m", 2),
        ("7.5 to 10 m", 1),
    ]


def test_corners_count_turns_of_45_degrees_in_plan() -> None:
    assert corners([(0, 0, 0), (1, 0, 0), (2, 5, 0)]) == 0
    assert corners([(0, 0, 0), (1, 0, 0), (2, 0, 1)]) == 1
    assert corners([(0, 0, 0), (1, 0, 0), (2, 0, 0.99)]) == 0
    assert corners([(0, 0, 0), (1, 0, 0), (1, 0, 0.05), (2, 0, 0)]) == 0  # too short to have a direction
    assert corners([(0, 0, 0), (0, 0, 1), (0, 0, 0)]) == 1


def test_storeys_hold_heights_within_a_meter() -> None:
    assert [level.height for level in storeys([0.1, 0.3, 2.9, 0.9, 3.1])] == [0.5, 3.0]
    assert storeys([]) == []
    assert METERS_PER_PIXEL == 0.05


def node(script: str) -> str:
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed")
    return subprocess.run([program, "-e", script], capture_output=True, text=True, check=True, timeout=300).stdout


def test_time_per_step_is_a_plot_and_a_table() -> None:
    data = random_run(30)
    assert "Time per step" not in page_of(data)  # rows that do not tell it
    table = table_of(_timed(entry.row) for entry in data.entries)
    text = page_of(replace(data, run=replace(data.run, table=table)))
    section = text[text.index('<section id="steps">') : text.index('<section id="run">')]
    shown = re.findall(r'<tr><th scope="row">([^<]*)</th><td>(\d+)</td><td>([\d,]+)</td><td>([^<]*)</td>', section)
    assert [part for part, *_ in shown] == list(PARTS[:-1])
    assert shown[0] == ("1-10", "30", "300", "2")
    assert shown[-1] == ("401-500", "3", "300", "2")
    [points] = re.findall(r'<polyline class="line" points="([^"]*)"', section)
    heights = {point.partition(",")[2] for point in points.split()}
    assert heights == {"12.0"}  # 2 ms everywhere, which is the top of the axis
    assert not re.search(r"nan|inf", section)


def _timed(row: Row) -> Row:
    """2 ms a step."""
    steps = row.scores["steps"]
    assert isinstance(steps, int)
    times = StepTimes()
    times.add(0.002 * steps, steps)
    return replace(row, seconds=part_seconds(times.by_part(steps)))


def test_the_script_parses() -> None:
    source = json.dumps("".join(map(asset, SCRIPTS)))
    assert node(f"new (require('vm').Script)({source}); console.log('parsed')") == "parsed\n"


def test_the_script_reads_back_what_the_agent_did() -> None:
    payload = Page(page_of(random_run(12))).scripts[0]
    stub = f"const document = {{getElementById: () => ({{textContent: {json.dumps(payload)}}})}};"
    walks = json.loads(node(f"{stub}\n{asset('map.js')}\nconsole.log(JSON.stringify(DATA.episodes.map(decode)))"))
    for (_, trajectory), found in zip(random_walks(12), walks, strict=True):
        assert found["actions"] == list(map(int, trajectory.actions))
        assert found["hits"] == list(trajectory.collided)
        assert np.abs(np.array(found["poses"]) / 100 - trajectory.positions).max() <= 0.005 + 1e-9
        assert np.abs(np.subtract(found["distances"], trajectory.goal_distances)).max() <= 0.005 + 1e-9
        turned = [pose.yaw - np.radians(yaw) for pose, yaw in zip(trajectory.poses, found["yaws"], strict=True)]
        assert np.abs(np.cos(turned) - 1).max() < 1e-4


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
def test_a_browser_shows_list_maps_and_detail(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    path = tmp_path / "page.html"
    path.write_text(page_of(random_run(40)), encoding="utf-8")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,900", "--enable-logging=stderr"]
    shot = tmp_path / "shot.png"

    def browse(*more: str) -> subprocess.CompletedProcess[str]:
        command = [CHROMIUM, *options, *more, f"{path.as_uri()}#episode=7"]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    dumped = browse("--dump-dom")
    assert "CONSOLE" not in dumped.stderr
    page = Page(dumped.stdout)
    shown = [attributes for tag, attributes in page.elements if tag == "dialog"]
    assert "open" in shown[0]
    assert "Episode 7 · scene7" in page.text
    assert "40 of 40 episodes" in page.text
    assert sum(attributes.get("class") == "card" for _, attributes in page.elements) == 11
    assert (
        sum("aria-label" in a and (a["aria-label"] or "").startswith("Show episode") for _, a in page.elements)
        == 25
    )
    browse(f"--screenshot={shot}")
    colors = Image.open(shot).convert("RGB").getcolors(1 << 24)
    assert colors is not None
    assert len(colors) > 50
