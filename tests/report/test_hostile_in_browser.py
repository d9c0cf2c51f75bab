"""A run whose every text is markup, in a browser: report and view execute nothing and load nothing."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agents.scripted import RandomAgent
from tests.browser import Tab, browser
from tests.fakes import make_episode
from tests.runs import record, write_dataset
from vlnbench.cli import main
from vlnbench.evaluation.records import MANIFEST, ROWS

pytestmark = pytest.mark.slow  # starts a browser

EXECUTED = "[window.executed || 0, document.querySelectorAll('[data-executed]').length]"


@contextmanager
def listener() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def hostile(place: str) -> str:
    """Text that would do something wherever it was taken for markup, a script, an attribute or a style."""
    do = "window.executed=1;document.documentElement.dataset.executed=1"
    loads = f"http://{place}"
    return (
        f"</script><script>{do}</script></title></style></textarea><!-- --><img src=x onerror='{do}'>"
        f"<svg onload='{do}'><a xlink:href='javascript:{do}'>a</a></svg><iframe srcdoc='<script>{do}</script>'>"
        f"</iframe><img src={loads}/img><link rel=stylesheet href={loads}/css><script src={loads}/js></script>"
        f"<style>@import '{loads}/import';body{{background:url({loads}/background)}}</style>"
        f"<meta http-equiv=refresh content='0;url={loads}/refresh'><base href={loads}/>"
        f"<object data={loads}/object></object>\" onmouseover=\"{do}\" ' onfocus='{do}' autofocus x=' "
        f"`${{{do}}}` {{{{constructor.constructor('{do}')()}}}} [a](javascript:{do}) ![b]({loads}/md) \u2028{do}//"
    )


def write_hostile(folder: Path, place: str) -> Path:
    """A run below `folder`, and its data, with such text wherever there is text; returns the data root."""
    text = hostile(place)
    episodes = [make_episode(i, scene="ab"[i % 2], distance=2.0 + i) for i in range(4)]
    root = write_dataset(folder / "data", episodes=episodes)
    run = folder / "runs" / "hostile"
    record(root, RandomAgent(), run)
    dataset = next(root.rglob("val_unseen.json.gz"))
    content = json.loads(gzip.decompress(dataset.read_bytes()))
    for each in content["episodes"]:
        each["instruction"]["instruction_text"] = text
    dataset.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    rows = [json.loads(line) for line in (run / ROWS).read_text().splitlines()]
    for row in rows:
        row |= {"trajectory_id": text, "scene_id": f"{text}/{row['scene_id']}"}
    rows[0] |= {"status": "error", "reason": text, "scores": {}}
    (run / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = json.loads((run / MANIFEST).read_text())
    manifest |= dict.fromkeys(("created", "vlnbench", "git", "python"), text) | {"packages": {text: text}}
    manifest["identity"] |= {"agent": text, "simulator": text, "agent_identity": {text: text}}
    (run / MANIFEST).write_text(json.dumps(manifest))
    return root


def look(tab: Tab, page: Path) -> None:
    """Open a page and do what a reader does: everything is pressed, and gets the focus and the pointer."""
    tab.open(page.as_uri(), 1280)
    tab.run(
        """(() => {
            const found = 'button, summary, th, td, tr, input, select, circle, a';
            for (const each of document.querySelectorAll(found))
                for (const kind of ['mouseover', 'focus', ...(each.matches('a') ? [] : ['click'])])
                    each.dispatchEvent(new Event(kind, {bubbles: true}));
        })()"""
    )
    tab.run("new Promise((done) => setTimeout(done, 500))")
    assert tab.run("location.href.split('#')[0]") == page.as_uri()
    assert tab.run(EXECUTED) == [0, 0]


@pytest.mark.parametrize("with_data", [True, False])
def test_hostile_text_stays_text_in_report_and_view(tmp_path: Path, with_data: bool) -> None:
    with listener() as (place, asked), browser() as tab:
        root = write_hostile(tmp_path, place)
        run = tmp_path / "runs" / "hostile"
        data = root if with_data else tmp_path / "nowhere"
        if with_data:  # the data has changed, and reports refuse other data than the run's
            manifest = json.loads((run / MANIFEST).read_text())
            manifest["identity"]["dataset_sha256"] = dataset_hash(root)
            (run / MANIFEST).write_text(json.dumps(manifest))
        report, view = tmp_path / "report.html", tmp_path / "view.html"
        options = [f"--data-root={data}", "--env=tests.faulty:plane"]
        assert main(["report", str(run), f"--out={report}", *options]) == 0
        assert main(["view", str(tmp_path / "runs"), f"--out={view}", f"--data-root={data}"]) == 0
        for page in (report, view):
            look(tab, page)
            shown = tab.run("document.body.innerText")
            assert "window.executed=1" in shown, "the text is there, as text"
            assert tab.run("document.querySelectorAll('iframe, object, base, img[src^=http]').length") == 0
        assert asked == []


def dataset_hash(root: Path) -> str:
    """What a run would say of the data below a root."""
    from vlnbench.data.benchmarks import get_benchmark
    from vlnbench.data.episodes import load_split

    return load_split(get_benchmark("houses-r2r"), "val_unseen", root, allow_partial=True).sha256


def test_the_text_does_something_where_it_is_markup(tmp_path: Path) -> None:
    """What is looked for can be found: the same text, written into a page as it is."""
    with listener() as (place, asked), browser() as tab:
        page = tmp_path / "page.html"
        page.write_text(f"<!doctype html><title>x</title><body>{hostile(place).replace('http-equiv=refresh', '')}")
        tab.open(page.as_uri(), 1280)
        assert tab.run(EXECUTED)[0] == 1
        assert {"/img", "/js"} <= set(asked)
