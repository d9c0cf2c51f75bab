"""Hooks of mkdocs: files that pages link to and that do not lie below docs/ get pages of their own.

On the repository's page such links lead to the files. A site has docs/ alone, so a file with code becomes a page
that shows it, a folder one that shows its files, and a picture comes along.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FETCHED = "https://unpkg.com/iframe-worker/shim"
PICTURES = {".png", ".svg"}
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}

outside: dict[Path, str] = {}
"""Files and folders of the repository, and where the site has them."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    outside.clear()
    for page in files.documentation_pages():
        source = DOCS / page.src_uri
        for _, _, link, _ in LINK.findall(source.read_text(encoding="utf-8")):
            path = _target(source, link)
            if path is not None and not path.is_relative_to(DOCS) and path not in outside:
                outside[path] = _place(path)
                files.append(_made(path, config))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where their files lie in the site; one to a file that is not there keeps its text alone."""
    places = {place: path for path, place in outside.items()}
    source = places.get(page.file.src_uri, DOCS / page.file.src_uri)

    def led(found: re.Match[str]) -> str:
        picture, text, link, anchor = found.groups()
        path = _target(source, link)
        if path is None or (path.is_relative_to(DOCS) and source.is_relative_to(DOCS)):
            return found[0]
        place = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else outside.get(path)
        if place is None:
            return text
        return f"{picture}[{text}]({os.path.relpath(place, os.path.dirname(page.file.src_uri))}{anchor or ''})"

    return LINK.sub(led, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Nothing is loaded from elsewhere: what the theme takes from the net is docs/worker.js."""
    return output.replace(FETCHED, os.path.relpath("worker.js", os.path.dirname(page.file.dest_uri)))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for pages that are none of ours, such as 404.html."""
    return output_content.replace(FETCHED, "worker.js")


def _target(source: Path, link: str) -> Path | None:
    """What a relative link leads to; None where that is no file or folder of the repository."""
    path = Path(os.path.normpath(source.parent / link))
    return path if ":" not in link and path.is_relative_to(ROOT) and path.exists() else None


def _place(path: Path) -> str:
    name = f"repository/{path.relative_to(ROOT).as_posix()}"
    return name if path.suffix in PICTURES | {".md"} else f"{name}.md"


def _made(path: Path, config: MkDocsConfig) -> File:
    if path.suffix in PICTURES:
        return File.generated(config, _place(path), abs_src_path=str(path))
    if path.suffix == ".md":
        return File.generated(config, _place(path), content=path.read_text(encoding="utf-8"))
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
        parts = [f"````python\n{text}\n````" if code else text for text, code in texts]
        return File.generated(config, _place(path), content="\n\n".join(parts))
    shown = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.suffix in LANGUAGES)
    parts = [f"# {path.relative_to(ROOT).as_posix()}"]
    for each in shown:
        parts += [f"## {each.relative_to(path).as_posix()}"] if each != path else []
        parts.append(f"````{LANGUAGES.get(each.suffix, '')}\n{each.read_text(encoding='utf-8')}\n````")
    return File.generated(config, _place(path), content="\n\n".join(parts))
