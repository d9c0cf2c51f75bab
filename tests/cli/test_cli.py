"""Every command end to end, as a user runs it: in an empty folder, what succeeds in a process of its own."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vlnbench.cli import main
from vlnbench.version import __version__

Mistake = Callable[..., str]

TINY = ["--train-houses", "2", "--val-unseen-houses", "2"]
TINY += ["--train-episodes", "40", "--val-seen-episodes", "20", "--val-unseen-episodes", "60"]


def vlnbench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from vlnbench.cli import main; raise SystemExit(main())", *arguments]
    return subprocess.run(command, cwd=cwd, env=os.environ, capture_output=True, text=True, timeout=900)


@pytest.fixture
def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mistake:
    """Runs a command that must be refused, in this process; returns its one line about it."""

    def run(*arguments: str, cwd: Path) -> str:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr("vlnbench.cli.signal.signal", lambda *_: None)
        assert main(arguments) == 2
        printed = capsys.readouterr().err
        assert "Traceback" not in printed
        (line,) = [line for line in printed.splitlines() if "error" in line]
        return line

    return run


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a small houses benchmark has been generated."""
    folder = tmp_path_factory.mktemp("workplace")
    result = vlnbench("data", "houses", *TINY, "--envdrop", "--envdrop-episodes", "50", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "val_unseen" in result.stdout
    assert "R2R-CE val_unseen" in result.stdout
    assert "envdrop: 50 episodes" in result.stdout
    return folder


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlnbench.cli.signal.signal", lambda *_: None)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vlnbench {__version__}\n"


def test_list_names_agents_and_benchmarks(tmp_path: Path) -> None:
    result = vlnbench("list", cwd=tmp_path)
    assert result.returncode == 0
    for name in ("shortest-path", "gt-replay", "random", "houses-r2r", "r2r-ce"):
        assert name in result.stdout


@pytest.mark.slow
def test_houses_of_the_same_options_are_kept(workplace: Path) -> None:
    manifest = workplace / "data/datasets/houses_r2r/houses.json"
    before = manifest.stat().st_mtime_ns
    result = vlnbench("data", "houses", *TINY, cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert manifest.stat().st_mtime_ns == before


def test_data_check_counts_instructions_that_are_untrue(workplace: Path) -> None:
    result = vlnbench("data", "check", "--benchmark", "houses-r2r", cwd=workplace)
    assert result.returncode == 0, result.stderr
    for split, count in (("train", 40), ("val_seen", 20), ("val_unseen", 60)):
        line = f"ok    {split} of houses-r2r  instructions: 0 of {count} are untrue or ambiguous"
        assert line in result.stdout.splitlines()
    assert "of 50 are untrue or ambiguous, the speaker's noise included" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rooms-min", "20"], "houses: rooms_min = 20: give a whole number from 4 to 12"),
        (["--storeys-share", "2"], "houses: storeys_share = 2.0: give a number from 0.0 to 1.0"),
        (["--envdrop-episodes", "5"], "--envdrop-episodes 5: expected 1 or more, with --envdrop"),
        (["--envdrop", "--envdrop-episodes", "0"], "--envdrop-episodes 0: expected 1 or more, with"),
    ],
)
def test_bad_options_of_the_houses_are_one_line(
    options: list[str], message: str, tmp_path: Path, mistake: Mistake
) -> None:
    assert mistake("data", "houses", *options, cwd=tmp_path).startswith(f"vlnbench: error: {message}")
    assert not any(tmp_path.iterdir())


def test_generated_data_have_the_layout_of_vlnce(workplace: Path) -> None:
    data = workplace / "data"
    for split in ("train", "val_seen", "val_unseen"):
        assert (data / "datasets" / "houses_r2r" / split / f"{split}.json.gz").is_file()
        assert (data / "datasets" / "houses_r2r" / split / f"{split}_gt.json.gz").is_file()
    scenes = list((data / "scene_datasets" / "houses").glob("*/*.glb"))
    assert len(scenes) == 4
    assert all(scene.with_suffix(".navmesh").is_file() for scene in scenes)


def sr(folder: Path) -> float:
    summary = json.loads((folder / "summary.json").read_text())
    return float(summary["metrics"]["SR"]["mean"])


@pytest.mark.slow
def test_the_default_command_evaluates_and_resumes(workplace: Path) -> None:
    first = vlnbench("eval", "--split", "val_unseen", cwd=workplace)
    assert first.returncode == 0, first.stderr
    assert "houses-r2r val_unseen: streamvln-tiny in embedded" in first.stdout
    assert "95 % interval" in first.stdout
    (folder,) = (workplace / "runs" / "houses-r2r" / "val_unseen").glob("streamvln-tiny-*")
    rows = (folder / "episodes.jsonl").read_bytes()
    again = vlnbench("eval", "--split", "val_unseen", cwd=workplace)
    assert again.stdout == first.stdout
    assert (folder / "episodes.jsonl").read_bytes() == rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "low", "high"),
    [("shortest-path", 0.99, 1.0), ("gt-replay", 0.99, 1.0), ("random", 0.0, 0.1), ("stop", 0.0, 0.0)],
)
def test_sanity_of_the_scripted_agents(workplace: Path, agent: str, low: float, high: float) -> None:
    result = vlnbench("eval", "--split", "val_seen", "--agent", agent, "--out", agent, cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert low <= sr(workplace / agent) <= high
    if agent == "gt-replay":
        summary = json.loads((workplace / agent / "summary.json").read_text())
        assert summary["metrics"]["nDTW"]["mean"] >= 0.95


@pytest.mark.slow
def test_a_run_becomes_a_report_with_maps_and_video(workplace: Path) -> None:
    result = vlnbench("eval", "--episodes", "2", "--agent", "stop", "--out", "reported", cwd=workplace)
    assert result.stdout.splitlines()[-1] == "to look at it: vlnbench report reported"
    result = vlnbench("report", "reported", "--video", "1", cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("2 episodes, ")
    text = (workplace / "reported" / "report.html").read_text(encoding="utf-8")
    data = json.loads(text.split('id="run-data">')[1].split("</script>")[0])
    assert all("png" in storey for scene in data["scenes"] for storey in scene["storeys"])
    assert sum("video" in episode for episode in data["episodes"]) == 1
    assert all(episode["text"] and len(episode["dist"]) == 1 for episode in data["episodes"])


@pytest.mark.slow
def test_a_tracker_follows_an_evaluation(workplace: Path) -> None:
    tracker = ["--tracker", "tests.fake_trackers:Recording"]
    arguments = ["--episodes", "3", "--envs", "1", "--agent", "stop", "--out", "tracked", *tracker]
    result = vlnbench("eval", *arguments, cwd=workplace)
    assert result.returncode == 0, result.stderr
    told = [json.loads(line) for line in (workplace / "tracked" / "told.jsonl").read_text().splitlines()]
    assert [kind for kind, _, _ in told] == ["run", "log", "log", "log", "finish"]
    assert told[0][2]["agent"] == "stop"
    assert [step for _, step, _ in told[1:-1]] == [1, 2, 3]
    assert {"SR": 0.0, "SPL": 0.0, "errors": 0.0}.items() <= told[3][2].items()
    assert told[3][2]["episodes_per_h"] > 0
    assert told[-1][2]["steps"] == 1.0


@pytest.mark.slow
def test_video_shows_frames_beside_the_map(workplace: Path) -> None:
    import imageio.v2 as imageio

    arguments = ["--agent", "shortest-path", "--episodes", "2", "--video", "1", "--out", "filmed"]
    result = vlnbench("eval", *arguments, cwd=workplace)
    assert result.returncode == 0, result.stderr
    (path,) = (workplace / "filmed" / "videos").glob("*.mp4")
    with imageio.get_reader(path) as reader:
        frame = reader.get_data(0)
        count = reader.count_frames()
    assert frame.shape[0] >= 480
    assert frame.shape[1] > 640 + 200
    assert frame[:480, :640].std() > 10
    rows = [json.loads(line) for line in (workplace / "filmed" / "episodes.jsonl").read_text().splitlines()]
    assert count >= min(row["scores"]["steps"] for row in rows) + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--agent", "shortest-pth"], "unknown agent 'shortest-pth': did you mean 'shortest-path'"),
        (["--benchmark", "house-r2r"], "unknown benchmark 'house-r2r': did you mean 'houses-r2r'"),
        (["--split", "val_unsen"], "unknown split of houses-r2r 'val_unsen': did you mean 'val_unseen'"),
        (["--episodes", "100000"], "--episodes 100000: houses-r2r val_unseen has 1 to"),
        (["--benchmark", "r2r-ce"], "no episode file for r2r-ce val_unseen: expected data/datasets/"),
        (["--video", "-1"], "--video -1: expected 0 or more"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    workplace: Path, arguments: list[str], message: str, mistake: Mistake
) -> None:
    assert message in mistake("eval", "--out", "never", *arguments, cwd=workplace)
    assert not (workplace / "never").exists()


def spoil_episode(root: Path) -> str:
    path = root / "datasets" / "houses_r2r" / "val_unseen" / "val_unseen.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["episodes"][4]["start_position"][1] = "low"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return (
        f"episode {document['episodes'][4]['episode_id']}: field 'start_position': expected three finite numbers"
    )


def spoil_start(root: Path) -> str:
    path = root / "datasets" / "houses_r2r" / "val_unseen" / "val_unseen.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["episodes"][4]["start_position"] = [500.0, 0.0, 0.0]
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return f"episode {document['episodes'][4]['episode_id']}: field 'start_position' (500.0, 0.0, 0.0) is off"


def unseen_scene(root: Path) -> Path:
    path = root / "datasets" / "houses_r2r" / "val_unseen" / "val_unseen.json.gz"
    scene_id = json.loads(gzip.decompress(path.read_bytes()))["episodes"][0]["scene_id"]
    return root / "scene_datasets" / str(scene_id)


def spoil_scene_gone(root: Path) -> str:
    unseen_scene(root).unlink()
    return "scene file is missing (field 'scene_id' of episode"


def spoil_scene_truncated(root: Path) -> str:
    path = unseen_scene(root)
    path.write_bytes(path.read_bytes()[:-100])
    return f"{path.name}: header: length"


def spoil_navmesh(root: Path) -> str:
    path = unseen_scene(root).with_suffix(".navmesh")
    path.write_bytes(path.read_bytes()[:200])
    return path.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil", [spoil_episode, spoil_start, spoil_scene_gone, spoil_scene_truncated, spoil_navmesh]
)
def test_bad_data_are_one_line_and_leave_nothing(
    workplace: Path, tmp_path: Path, spoil: Callable[[Path], str], mistake: Mistake
) -> None:
    shutil.copytree(workplace / "data", tmp_path / "data")
    message = spoil(tmp_path / "data")
    assert message in mistake("eval", "--out", "never", "--envs", "1", cwd=tmp_path)
    assert not (tmp_path / "never").exists()


@pytest.mark.slow
def test_real_episodes_run_on_corridor_scenes(shared: Path, tmp_path: Path) -> None:
    arguments = ["--benchmark", "r2r-ce", "--split", "val_seen", "--data-root", str(shared / "data")]
    result = vlnbench("eval", *arguments, "--agent", "gt-replay", "--episodes", "40", "--out", "run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sr(tmp_path / "run") >= 0.99
    assert "episodes 40 of 778" in result.stdout


def test_output_that_nobody_reads_is_no_failure(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "vlnbench", "list"]
    with os.fdopen(writer, "w") as unread:
        ended = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, cwd=tmp_path, timeout=120)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


def test_a_file_that_the_file_system_withholds_is_one_line(
    tmp_path: Path, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is met: root is nobody on many servers, and another machine may have removed a file."""

    def read(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", "/lab/run/manifest.json")

    monkeypatch.setattr("vlnbench.evaluation.status.read_status", read)
    line = mistake("status", str(tmp_path), cwd=tmp_path)
    assert line == "vlnbench: error: /lab/run/manifest.json: Stale file handle"
