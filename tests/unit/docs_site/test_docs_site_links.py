"""Links of pages, relative in the repository before and relative in the site afterwards."""

from pathlib import Path

import pytest

from docs_site.links import rewrite_links
from docs_site.sources import Site, find_sources, page_place
from tests.conftest import ROOT

SITE = Site(
    pages={
        "docs/README.md": "index.md",
        "docs/a.md": "a.md",
        "docs/tutorials/b.md": "tutorials/b.md",
        "docs/decisions/README.md": "decisions/index.md",
        "images/README.md": "images/index.md",
        "CHANGELOG.md": "changelog.md",
    },
    pictures={"docs/pictures/p.png": "pictures/p.png"},
    examples={"examples/digits": "examples/digits/index.md"},
)


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("docs/a.md", "tutorials/b.md#x", "tutorials/b.md#x"),
        ("docs/a.md", "../CHANGELOG.md", "changelog.md"),
        ("docs/a.md", "../images/README.md#x", "images/index.md#x"),
        ("docs/a.md", "decisions/", "decisions/index.md"),
        ("docs/a.md", "../examples/digits", "examples/digits/index.md"),
        ("docs/a.md", "../examples/digits/m.py", "examples/digits/index.md#mpy"),
        ("docs/tutorials/b.md", "../pictures/p.png", "../pictures/p.png"),
        ("images/README.md", "../docs/a.md", "../a.md"),
        ("CHANGELOG.md", "docs/a.md#y", "a.md#y"),
        ("docs/a.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("docs/a.md", "#y", "#y"),
    ],
)
def test_links_become_relative_in_the_site(source: str, link: str, expected: str) -> None:
    assert rewrite_links(f"[x]({link})", source, SITE) == (f"[x]({expected})", [])


def test_link_to_a_file_outside_the_site_is_a_problem() -> None:
    text, problems = rewrite_links("[x](../Makefile)", "docs/a.md", SITE)
    assert text == "[x](../Makefile)"
    [problem] = problems
    assert problem.startswith("docs/a.md: the link ../Makefile leads to no page of the site: link")


def test_code_contains_no_links() -> None:
    text = "`[x](y)`\n\n```\n[x](y)\n```\n"
    assert rewrite_links(text, "docs/a.md", SITE) == (text, [])


def test_docs_is_the_root_of_the_site() -> None:
    assert page_place("docs/README.md") == "index.md"
    assert page_place("docs/runbook/README.md") == "runbook/index.md"
    assert page_place("ARCHITECTURE.md") == "architecture.md"


def test_fragments_of_the_changelog_are_no_pages(tmp_path: Path) -> None:
    pages = ("docs/a.md", "docs/changes/README.md", "docs/changes/api/1.md")
    for path in (*pages, "docs/pictures/p.png", "examples/e/m.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    site = find_sources(tmp_path)
    assert site == Site(
        {"docs/a.md": "a.md", "docs/changes/README.md": "changes/index.md"},
        {"docs/pictures/p.png": "pictures/p.png"},
        {"examples/e": "examples/e/index.md"},
    )


def test_every_page_of_the_documents_is_in_the_navigation() -> None:
    navigation = (ROOT / "docs_site" / "zensical.toml").read_text()
    places = {
        place
        for source, place in find_sources().pages.items()
        # Folders with an index, whose pages the index lists.
        if "/" not in place.removeprefix("tutorials/")
    }
    assert sorted(place for place in places if f'"{place}"' not in navigation) == []
