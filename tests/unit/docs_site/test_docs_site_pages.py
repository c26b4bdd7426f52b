"""Broken links, missing anchors and foreign files of a built site are found."""

from pathlib import Path

import pytest

from docs_site import page_checks
from docs_site.page_checks import check_site
from docs_site.sources import Site

OTHER = '<h2 id="there">There</h2>'


@pytest.fixture(autouse=True)
def _small_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_checks, "find_sources", lambda: Site({"docs/a.md": "a.md"}, {}, {}))


def problems(site: Path, page: str) -> list[str]:
    """Return the problems of a site with `page`, another page and a picture."""
    (site / "b").mkdir()
    (site / "a.html").write_text(page)
    (site / "b" / "index.html").write_text(OTHER)
    (site / "p.png").write_text("")
    return check_site(site)


@pytest.mark.parametrize(
    "page",
    [
        '<a href="b/index.html#there">',
        '<a href="b/#there">',
        '<img src="p.png"><a href="https://example.com/x">',
        '<i id="x"></i><a href="#x">',
        '<a href="../versions.json">',
    ],
)
def test_accepts_links_within_the_site(tmp_path: Path, page: str) -> None:
    assert problems(tmp_path, page) == []


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ('<a href="c.html">', "a.html: c.html leads to no file of the site"),
        ('<img src="q.png">', "a.html: q.png leads to no file of the site"),
        (
            '<a href="b/index.html#here">',
            "a.html: b/index.html#here: b/index.html has no heading with this anchor",
        ),
        ('<a href="#x">', "a.html: #x: a.html has no heading with this anchor"),
        (
            '<script src="https://cdn.example.com/x.js"></script>',
            "a.html: https://cdn.example.com/x.js is loaded from another server: put the file into "
            "docs_site/assets",
        ),
        (
            '<link rel="stylesheet" href="//fonts.example.com/x.css">',
            "a.html: //fonts.example.com/x.css is loaded from another server: put the file into "
            "docs_site/assets",
        ),
    ],
)
def test_refuses_broken_links_and_foreign_files(tmp_path: Path, page: str, problem: str) -> None:
    assert problems(tmp_path, page) == [problem]


def test_site_without_pages_is_a_problem(tmp_path: Path) -> None:
    [problem] = check_site(tmp_path)
    assert problem.endswith("0 pages were built, fewer than the repository has")
