"""Relative links of documents lead to existing files and headings."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.house.rules import ROOT

DOCUMENTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "images/**/*.md", "examples/**/*.md", "tests/*.md")
    for path in sorted(ROOT.glob(pattern))
]


def test_links_of_documents_lead_to_headings() -> None:
    links = [(document, link) for document in DOCUMENTS for link in _links(document.read_text())]
    assert len(links) > 100
    broken = [
        f"{document.relative_to(ROOT)}: {link}"
        for document, link in links
        if not _is_there(document, link)
    ]
    assert not broken, "\n".join(broken)


def test_link_to_a_missing_heading_is_broken(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# The `page` of x.y\n\n```\n# no heading\n```\n")
    assert _is_there(page, "#the-page-of-xy")
    assert _is_there(page, "page.md#the-page-of-xy")
    assert not _is_there(page, "#no-heading")
    assert not _is_there(page, "other.md")


def test_equal_headings_get_numbered_anchors() -> None:
    assert list(_anchors("# Limits\n## Limits\n")) == ["limits", "limits-1"]


def _links(text: str) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", link):
            yield link


def _is_there(document: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    path = document.parent / name if name else document
    if not anchor or path.suffix != ".md":
        return path.exists()
    return path.is_file() and anchor in _anchors(path.read_text())


def _anchors(text: str) -> Iterator[str]:
    """Yield the anchors of a text's headings, made by GitHub's rules."""
    counts: dict[str, int] = {}
    outside_code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ (.+)$", outside_code, re.MULTILINE):
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = counts.get(anchor, 0)
        counts[anchor] = count + 1
        yield f"{anchor}-{count}" if count else anchor
