"""What mkdocs does beside rendering docs/*.md: the pages that are made, and links out of docs/.

The pages of docs/ are written for the repository: they link to files of it, such as
../fedrows/server.py. The site has a page for every file or folder that is linked to, so that no
link leaves the site. README, CONTRIBUTING and the notebooks are pages of it too. The navigation is
made from docs/index.md, and the API reference from public_names.py.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

sys.path.insert(0, str(Path(__file__).parent))

from notebook_page import page_of
from public_names import CHAPTERS

ROOT = Path(__file__).parent.parent.parent
ROOT_PAGES = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^( *)```.*?^\1```$|^``````.*?^``````$", re.MULTILINE | re.DOTALL)
ENTRY = re.compile(r"^- \[(.+?)\]\(([^)]+)\)", re.MULTILINE)
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
LONGEST = 8  # rows of a table that is shown at once
FOLDED = {"results.md", "recommenders.md", "speed.md", "theory.md", "threat-model.md"}
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".cu": "c++"}


def on_config(config: Any) -> Any:
    """Makes the navigation: the headings and lists of docs/index.md."""
    config.nav = navigation()
    return config


def navigation() -> list[dict[str, Any]]:
    text = (ROOT / "docs" / "index.md").read_text("utf-8")
    nav: list[dict[str, Any]] = [{"Home": "index.md"}]
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        entries: list[dict[str, Any]] = []
        for name, target in ENTRY.findall(body):
            uri = site_page(posixpath.normpath(f"docs/{target}"))
            if uri == "reference.md":
                pages = [{chapter.title: chapter.page} for chapter in CHAPTERS]
                entries.append({name: ["reference.md", *pages]})
            else:
                entries.append({name.replace("`", ""): uri})
        if entries:
            nav.append({title: entries})
    return nav


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are made."""

    def add(uri: str, content: str) -> None:
        level = InclusionLevel.NOT_IN_NAV if uri.startswith("source/") else InclusionLevel.INCLUDED
        files.append(File.generated(config, uri, content=content, inclusion=level))

    for path, uri in ROOT_PAGES.items():
        add(uri, (ROOT / path).read_text("utf-8"))
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        executed = ROOT / "build" / "notebooks" / path.name
        add(site_page(str(path.relative_to(ROOT))), page_of(path, executed))
    for chapter in CHAPTERS:
        blocks = "\n\n".join(f"::: {name}" for name in chapter.names)
        add(chapter.page, f"# {chapter.title}\n\n{chapter.summary}\n\n{blocks}\n")
    for path in sorted(linked_sources()):
        add(site_page(path), source_page(path))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links to files of the repository into links to pages of the site."""
    uri = page.file.src_uri
    if uri.startswith(("source/", "reference/")):
        return markdown
    if uri == "index.md":
        page.meta["hide"] = ["navigation"]
    if uri == "reference.md":
        markdown = reference_links(markdown)
    markdown = re.sub(r"-->\n(?=\S)", "-->\n\n", markdown)  # a table must not touch a comment
    home = origin(uri)
    for start, stop in reversed(list(outside_code(markdown))):
        part = LINK.sub(lambda link: relinked(link, home, uri), markdown[start:stop])
        markdown = markdown[:start] + part + markdown[stop:]
    return markdown


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Folds long tables of numbers, so that a page can be read without scrolling past them."""
    return TABLE.sub(folded, html) if page.file.src_uri in FOLDED else html


def folded(table: re.Match[str]) -> str:
    rows = table[0].count("<tr>") - 1
    if rows <= LONGEST:
        return table[0]
    names = re.sub(r"<[^>]*>", "", ", ".join(re.findall(r"<th[^>]*>(.*?)</th>", table[0])))
    return f'<details class="info"><summary>{rows} rows: {names}</summary>{table[0]}</details>'


def relinked(link: re.Match[str], home: str, uri: str) -> str:
    path = posixpath.normpath(posixpath.join(home, link[1]))
    if path.startswith("docs/reference/"):
        return link[0]
    target = site_page(path)
    here = posixpath.dirname(uri) or "."
    return posixpath.relpath(target, here) + (link[2] or "")


def site_page(path: str) -> str:
    """Where a file of the repository is on the site, as a page's source name."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("examples/notebooks/") and path.endswith(".ipynb"):
        return f"notebooks/{Path(path).stem}.md"
    if path.startswith("docs/") and path.endswith((".md", ".svg", ".png")):
        return path.removeprefix("docs/")
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def origin(uri: str) -> str:
    """The folder of the repository in which the file of a page lies."""
    if uri in ROOT_PAGES.values():
        return "."
    return "examples/notebooks" if uri.startswith("notebooks/") else "docs"


def linked_sources() -> set[str]:
    """Every file and folder that a page links to and that is no page, and the files of folders."""
    found = set()
    notebooks = (ROOT / "examples" / "notebooks").glob("*.ipynb")
    for path in [*(ROOT / "docs").glob("*.md"), *(ROOT / x for x in ROOT_PAGES), *notebooks]:
        text = page_of(path) if path.suffix == ".ipynb" else path.read_text("utf-8")
        home = str(path.parent.relative_to(ROOT))
        for start, stop in outside_code(text):
            for link in LINK.finditer(text[start:stop]):
                target = posixpath.normpath(posixpath.join(home, link[1]))
                if site_page(target).startswith("source/") and (ROOT / target).exists():
                    found.add(target)
    for folder in [x for x in found if (ROOT / x).is_dir()]:
        found |= {str(x.relative_to(ROOT)) for x in files_of(ROOT / folder)}
    return found


def files_of(folder: Path) -> list[Path]:
    """The text files below a folder."""
    wanted = {*LANGUAGES, ".md", ".txt", ".css", ".html", ".js"}
    files = (x for x in sorted(folder.rglob("*")) if "__pycache__" not in x.parts)
    return [x for x in files if x.is_file() and x.suffix in wanted]


def source_page(path: str) -> str:
    """A file as a page of code, or a folder as a list of its files."""
    head = f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n"
    place = ROOT / path
    if place.is_dir():
        names = [x.relative_to(place).as_posix() for x in files_of(place)]
        return head + "".join(f"- [`{x}`]({x}.md)\n" for x in names)
    language = LANGUAGES.get(place.suffix, "text")
    code = place.read_text("utf-8").rstrip()
    return f'{head}`````` {{ .{language} linenums="1" }}\n{code}\n``````\n'


def reference_links(markdown: str) -> str:
    """The overview of the reference with links to its pages instead of files."""
    pages = {name: chapter.page for chapter in CHAPTERS for name in chapter.names}
    return re.sub(
        r"\[`([\w.]+)`\]\(\.\./[^)]*\)", lambda m: f"[`{m[1]}`]({pages[m[1]]}#{m[1]})", markdown
    )


def outside_code(text: str) -> Iterator[tuple[int, int]]:
    """Where the text between blocks of code begins and ends."""
    at = 0
    for block in FENCE.finditer(text):
        yield at, block.start()
        at = block.end()
    yield at, len(text)
