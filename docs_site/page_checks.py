"""Checks of the built site: links, anchors, foreign files, and equality with the sources."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from docs_site.outline import first_difference, page_outline, source_outline
from docs_site.sources import REPOSITORY, find_sources

# Elements that load a file, with the attribute that names the file.
LOADERS = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
# Relations of `link` elements that load a file.
LOADED_RELATIONS = frozenset(("stylesheet", "icon", "preload", "modulepreload", "preconnect"))
# Files beside the folder of a published version, relative to the folder.
PUBLISHED_LATER = frozenset(("../versions.json", "../latest/index.html"))


@dataclass
class PageLinks(HTMLParser):
    """A reader of HTML that collects the links, loaded files and anchors of a page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in LOADERS and LOADERS[tag] in found:
            self.loaded.append(found[LOADERS[tag]])
        elif tag == "link" and LOADED_RELATIONS & set(found.get("rel", "").split()):
            self.loaded.append(found.get("href", ""))


def check_site(site: Path) -> list[str]:
    """Return all problems of the links and loaded files of the pages under `site`."""
    pages = {
        path.relative_to(site).as_posix(): read_page(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
    }
    # A server sends 404.html for any address, so relative links of this page have no base.
    checked = {place: page for place, page in pages.items() if place != "404.html"}
    problems = [
        problem
        for place, page in checked.items()
        for problem in _page_problems(place, page, pages, site)
    ]
    if len(checked) < len(find_sources().pages):
        problems.append(f"{site}: {len(checked)} pages were built, fewer than the repository has")
    return problems


def read_page(html: str) -> PageLinks:
    """Return the links, loaded files and anchors of a page."""
    page = PageLinks()
    page.feed(html)
    page.close()
    return page


def check_outlines(site: Path, root: Path = REPOSITORY) -> list[str]:
    """Return a problem for each page that differs from its source as GitHub shows the source."""
    problems = []
    for source, place in find_sources(root).pages.items():
        built = site / PurePosixPath(place).with_suffix(".html")
        if not built.exists():
            problems.append(f"{source}: the page {built} was not built")
            continue
        expected = source_outline((root / source).read_text(encoding="utf-8"))
        difference = first_difference(expected, page_outline(built.read_text(encoding="utf-8")))
        if difference:
            problems.append(f"{source}: the site shows other content than GitHub: {difference}")
    return problems


def _page_problems(
    place: str, page: PageLinks, pages: dict[str, PageLinks], site: Path
) -> Iterator[str]:
    for link in page.loaded:
        if urlsplit(link).scheme not in ("", "data") or link.startswith("//"):
            yield (
                f"{place}: {link} is loaded from another server: put the file into docs_site/assets"
            )
    for link in [*page.links, *page.loaded]:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(parts.path)))
        target = target if parts.path else place
        if parts.path.endswith("/") or target in (".", ""):
            target = posixpath.normpath(posixpath.join(target, "index.html"))
        if target in PUBLISHED_LATER:
            continue
        if not (site / target).is_file():
            yield f"{place}: {link} leads to no file of the site"
        elif parts.fragment and target in pages and not _has_anchor(pages[target], parts.fragment):
            yield f"{place}: {link}: {target} has no heading with this anchor"


def _has_anchor(page: PageLinks, fragment: str) -> bool:
    return unquote(fragment) in page.anchors
