from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from agents.scripted import GroundTruthReplayAgent, RandomAgent, StopAgent
from tests.report.made import Page
from tests.runs import record, write_dataset
from vlnbench.cli import main
from vlnbench.errors import UsageError
from vlnbench.evaluation.choice.choice import Choice
from vlnbench.views.find import find
from vlnbench.views.page import payload, render
from vlnbench.views.serve import make_server

RESULTS = Path(__file__).parents[2] / "results"
NASTY = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> \u2028 ' \""


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data")


@pytest.fixture
def runs(data_root: Path, tmp_path: Path) -> Path:
    """Three runs: two of the same episodes, one of chosen ones."""
    record(data_root, GroundTruthReplayAgent(), tmp_path / "runs" / "replay")
    record(data_root, RandomAgent(), tmp_path / "runs" / "random")
    record(data_root, StopAgent(), tmp_path / "runs" / "few", choice=Choice(scenes=("a",)))
    return tmp_path / "runs"


def training(folder: Path, steps: int = 3, name: str = "grad_norm") -> Path:
    folder.mkdir(parents=True)
    (folder / "train.json").write_text(json.dumps({"schedule": {"steps": 9, "windows_per_step": 2}}))
    lines = [
        {"step": i, "loss": 3.0 - i, "windows_per_s": 2.0, name: 1.0 * i, "learning_rates": {"head": 0.1 * i}}
        for i in range(1, steps + 1)
    ]
    (folder / "train_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def data_of(*paths: Path, page: Path | None = None, data_root: Path = Path("nowhere")) -> dict[str, Any]:
    return payload(find(paths), page, data_root, None)[0]


def test_runs_are_found_grouped_ranked_and_labeled(runs: Path, tmp_path: Path) -> None:
    data = data_of(runs)
    assert data["runs"][0]["folder"].endswith("/replay")
    by_name = {Path(run["folder"]).name: run for run in data["runs"]}
    assert by_name["replay"]["metrics"]["SR"]["mean"] == 100.0
    assert by_name["few"]["labels"] == ["scene a"]
    assert (by_name["few"]["episodes"], by_name["random"]["episodes"]) == ("3 of 9", "9 of 9")
    [group] = data["groups"]
    assert (group["title"], sorted(group["runs"])) == ("houses-r2r val_unseen", [0, 1, 2])
    assert len({run["name"] for run in data["runs"]}) == 3
    (tmp_path / "runs" / "random" / "episodes.jsonl").write_bytes(
        b"".join((tmp_path / "runs" / "random" / "episodes.jsonl").read_bytes().splitlines(True)[:4])
    )
    again = {Path(run["folder"]).name: run for run in data_of(runs)["runs"]}
    assert (again["random"]["labels"], again["random"]["done"]) == (["PARTIAL"], 4)


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return data_of(RESULTS)


def test_only_runs_of_the_same_episodes_are_paired(committed: dict[str, Any]) -> None:
    """The figures of docs/how-to/leaderboard.md."""
    data = committed
    folders = [Path(run["folder"]).name.removeprefix("houses-r2r-val-unseen-") for run in data["runs"]]
    together = {pair for group in data["groups"] for pair in combinations(sorted(group["runs"]), 2)}
    assert sorted(tuple(sorted((p["a"], p["b"]))) for p in data["pairs"]) == sorted(together)
    names = [re.sub(r"(-val-(un)?seen).*", r"\1", Path(run["folder"]).name) for run in data["runs"]]
    episodes = [{names[i] for i in group["runs"]} for group in data["groups"]]
    assert [len(each) for each in episodes] == [1] * len(set(names))
    [pair] = [p for p in data["pairs"] if {folders[p["a"]], folders[p["b"]]} == {"blind", "streamvln-tiny"}]
    sign = 1 if folders[pair["b"]] == "streamvln-tiny" else -1
    assert sign * pair["SR"]["mean"] == pytest.approx(64.4, abs=0.05)
    assert {pair["wins"], pair["losses"]} == {588, 8}


def test_chosen_episodes_are_not_paired_with_all(runs: Path) -> None:
    data = data_of(runs)
    few = next(i for i, run in enumerate(data["runs"]) if run["folder"].endswith("few"))
    assert [few in (pair["a"], pair["b"]) for pair in data["pairs"]] == [False]


def test_the_same_episode_lies_side_by_side(runs: Path, data_root: Path) -> None:
    data = data_of(runs, data_root=data_root)
    [group] = data["walked"]
    episodes = {episode["id"]: episode for episode in group["episodes"]}
    assert list(episodes) == [str(i) for i in range(9)]
    replay = next(i for i, run in enumerate(group["runs"]) if data["runs"][run]["folder"].endswith("replay"))
    few = next(i for i, run in enumerate(group["runs"]) if data["runs"][run]["folder"].endswith("few"))
    walk = episodes["4"]["walks"][replay]
    assert (data["kinds"][walk["kind"]]["name"], walk["spl"]) == ("success", 1.0)
    assert episodes["4"]["walks"][few] is None
    assert (episodes["4"]["text"], episodes["4"]["goals"]) == ("Walk 6.0 meters ahead.", [[0, 0, -600]])
    assert data["scenes"][episodes["4"]["scene"]]["name"] == "b"
    bare = data_of(runs)
    assert "text" not in bare["walked"][0]["episodes"][4]
    assert any("no dataset at hand" in line for line in bare["notes"])


def test_trainings_have_curves(tmp_path: Path) -> None:
    [found] = data_of(training(tmp_path / "one"))["trainings"]
    assert (found["done"], found["planned"], found["loss"]) == (3, 9, 0.0)
    assert found["curves"]["loss"] == [[1, 2.0], [2, 1.0], [3, 0.0]]
    assert found["curves"]["learning_rates head"][-1] == [3, pytest.approx(0.3)]
    [long] = data_of(training(tmp_path / "two", 1000))["trainings"]
    assert len(long["curves"]["loss"]) <= 401
    assert long["curves"]["loss"][-1][0] == 1000


def test_results_hold_matrix_and_leaderboard(committed: dict[str, Any]) -> None:
    data = committed
    [matrix] = [each for each in data["matrices"] if each["name"] == "tunable_parts_x_envdrop"]
    row = next(each for each in matrix["rows"] if each["name"] == "vision + projector + language, R2R, seed=0")
    assert row["results"]["val_seen"]["SR"]["mean"] == pytest.approx(14.0)
    assert row["facts"]["GPU memory, planned (GB)"] == pytest.approx(0.9117, abs=1e-4)
    assert {each["kind"] for each in matrix["rows"]} == {"setting", "reference"}
    boards = {board["title"] for board in data["boards"]}
    assert {"R2R-CE val_unseen", "RxR-CE val_unseen"} <= boards
    ours = [row for board in data["boards"] for row in board["rows"] if row["ours"]]
    assert len(ours) == sum(Path(run["folder"]).parent == RESULTS / "runs" for run in data["runs"]) > 0


def test_links_lead_to_reports(runs: Path, tmp_path: Path) -> None:
    (runs / "replay" / "report.html").write_text("a report")
    (tmp_path / "page s").mkdir()
    data = data_of(runs, page=tmp_path / "page s" / "view.html")
    reports = {Path(run["folder"]).name: run["report"] for run in data["runs"]}
    assert reports == {"replay": "../runs/replay/report.html", "random": None, "few": None}


def test_whatever_a_text_holds_it_stays_text(runs: Path, tmp_path: Path) -> None:
    training(tmp_path / "evil", name=NASTY)
    path = runs / "random" / "episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= {"status": "error", "reason": NASTY, "scores": {}}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = render(data_of(runs, tmp_path / "evil"))
    page = Page(text)
    assert text.count("<script") == text.count("</script>") == 2
    assert NASTY in page.payload["trainings"][0]["curves"]
    assert any((w or {}).get("reason") == NASTY for e in page.payload["walked"][0]["episodes"] for w in e["walks"])
    assert "<img src=x" not in text
    for name in ("table.js", "plots.js", "compare.js", "view.js"):
        script = (Path(render.__code__.co_filename).parent / "assets" / name).read_text(encoding="utf-8")
        assert "innerHTML" not in script


def test_the_command_writes_one_page_and_names_what_it_leaves_out(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "broken").mkdir()
    (runs / "broken" / "manifest.json").write_text("{}")
    out = tmp_path / "view.html"
    assert main(["view", str(runs), "--out", str(out), "--data-root", str(tmp_path / "no")]) == 0
    printed = capsys.readouterr().out
    assert "left out: " in printed
    assert "broken/manifest.json: field 'identity': expected an object" in printed
    assert f"3 runs, 0.0 MB: {out}" in printed or f"3 runs, 0.1 MB: {out}" in printed
    assert "connect-src 'none'" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "view: expected folders of runs"),
        (["{}/nothing"], "no folder; expected runs"),
        (["{}/empty"], "empty: holds no run"),
        (["{}/runs", "--out", "{}/x/view.html"], "there is no folder"),
        (["{}/runs", "--serve", "--port", "99999"], "--port 99999: cannot be used"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["view", *(argument.format(tmp_path) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_too_many_runs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlnbench.views.find.MOST", 2)
    for i in range(3):
        training(tmp_path / str(i))
    with pytest.raises(UsageError, match="holds more than 2 runs"):
        find([tmp_path])


@contextmanager
def served(path: Path) -> Iterator[str]:
    server, address = make_server([path], Path("nowhere"), 0)
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield address.rstrip("/")
        finally:
            server.shutdown()
            thread.join()


def get(address: str, **headers: str) -> tuple[int, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def policy(address: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=30) as answer:
        return str(answer.headers["Content-Security-Policy"])


def test_the_live_page_follows_a_run(runs: Path, data_root: Path) -> None:
    (runs / "replay" / "report.html").write_text("a report")
    with served(runs) as address:
        status, page = get(address + "/")
        assert status == 200
        assert b"connect-src 'self'" in page
        first = json.loads(get(address + "/data.json")[1])
        assert get(f"{address}/data.json?stamp={first['stamp']}") == (204, b"")
        record(data_root, StopAgent(), runs / "new")
        fresh = json.loads(get(f"{address}/data.json?stamp={first['stamp']}")[1])
        assert (len(first["runs"]), len(fresh["runs"])) == (3, 4)
        report = next(run["report"] for run in fresh["runs"] if run["report"])
        assert get(f"{address}/{report}") == (200, b"a report")
        assert "sandbox" in policy(f"{address}/{report}")
        assert "frame-ancestors 'none'" in policy(address + "/")


def test_the_server_gives_away_nothing_else(runs: Path) -> None:
    with served(runs) as address:
        port = address.rpartition(":")[2].partition("/")[0]
        whole = f"http://127.0.0.1:{port}"
        for path in ("", "/", "/data.json", "/x/data.json", "//data.json", f"{address[len(whole) :]}x/data.json"):
            assert get(whole + path)[0] == 403
        for path in ("/report/99", "/report/../manifest.json", "/etc/passwd", "/report/x", "/view.css"):
            assert get(address + path)[0] == 404
        (runs / "replay" / "report.html").unlink(missing_ok=True)
        (runs / "replay" / "report.html").symlink_to("/etc/passwd")
        shown = json.loads(get(address + "/data.json")[1])["runs"]
        assert all(get(f"{address}/report/{number}")[0] == 404 for number in range(len(shown)))
        assert get(address + "/data.json", Host=f"evil.example:{port}")[0] == 403
        assert get(address + "/data.json", Host=f"localhost:{port}")[0] == 200
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with pytest.raises(urllib.error.HTTPError) as refused:
            opener.open(urllib.request.Request(address, data=b"x"), timeout=30)
        assert refused.value.code == 501
        refused.value.close()
