from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, inline, prose
from vlnbench.util.plugins import KINDS

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^(?:vlnbench|agents|envs|tests|benchmarks|examples|results|docs)(?:[/.][\w.-]+)+(?::\w+)?$")


GROUPS = {f"vlnbench.{group}" for group in KINDS}
"""Groups of entry points, which read like modules."""


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name}: {link}: there is no {path}"
        assert path.is_relative_to(ROOT), f"{page.name}: {link} leads out of the repository"
        if anchor:
            assert anchor in anchors(path), f"{page.name}: {link}: {path.name} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_modules_that_are_named_exist(page: Path) -> None:
    """Paths and dotted names in backticks; what a reader is to make is told by its name, my_..."""
    for name in filter(_CODE.match, inline(page)):
        if "my_" in name or name in GROUPS:
            continue
        dotted, _, attribute = name.partition(":")
        if "/" in name:
            made = name.startswith(("results/mine", "results/<"))
            assert made or (ROOT / name).exists(), f"{page.name}: there is no {name}"
            continue
        parts = dotted.split(".")
        module = next((n for n in range(len(parts), 0, -1) if _source(parts[:n]) is not None), 0)
        rest = [*parts[module:], *([attribute] if attribute else [])]
        source = _source(parts[:module])
        assert source is not None, f"{page.name}: there is no module {name}"
        assert len(rest) <= 1, f"{page.name}: there is no module {name}"
        pattern = (
            rf"^(?:class|def) {rest[0]}\b|^{rest[0]}\b.*=|\bas {rest[0]}$|^ *from .* import .*\b{rest[0]}\b"
            if rest
            else ""
        )
        assert re.search(pattern, source.read_text(encoding="utf-8"), re.MULTILINE), f"{page.name}: no {name}"


def _source(parts: list[str]) -> Path | None:
    base = ROOT.joinpath(*parts)
    files = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in files if parts and path.is_file()), None)


def test_the_readme_stays_one_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def test_every_page_is_linked_from_the_overview_and_says_what_it_answers() -> None:
    overview = ROOT / "docs" / "README.md"
    linked = {(overview.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(overview))}
    for page in (ROOT / "docs").rglob("*.md"):
        assert page == overview or page in linked, page
        title, _, question = page.read_text(encoding="utf-8").split("\n", 3)[:3]
        assert title.startswith("# ")
        assert question.startswith("*"), f"{page.name}: expected, below the title, the question it answers"


def test_the_site_has_every_page() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert named == pages, "mkdocs.yml: the pages below nav are not those of docs/"


def test_the_first_blocks_of_the_readme_are_what_ci_runs() -> None:
    """`.ci/run` takes the first bash block below these two headings."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for heading, last in (("## First result", "vlnbench eval"), ("## Tests", "pytest")):
        section = text.split(f"\n{heading}\n")[1]
        command = section.split("```bash\n")[1].split("```")[0]
        assert command.startswith("python3.11 -m venv .venv && \\\n")
        assert last in command.splitlines()[-1]


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs").rglob("*.png"))
    assert pictures
    assert all(path.stat().st_size <= 200_000 for path in pictures)


def test_yaml_and_python_blocks_are_whole() -> None:
    import yaml

    for page in PAGES:
        for language, text in blocks(page):
            if language == "yaml":
                assert isinstance(yaml.safe_load(text), dict), page
            elif language == "python":
                compile(text, str(page), "exec")
