"""Outlines of pages: words and elements in order, to compare a page with its source.

The generator has another Markdown dialect than GitHub. Equal outlines prove that a reader of the
site and a reader of the repository see the same headings, lists, tables, links and code.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

from docs_site.dialect import parser

ELEMENTS = frozenset(
    (
        *("h1", "h2", "h3", "h4", "h5", "h6", "li", "pre", "code", "table", "tr", "th", "td"),
        *("a", "strong", "em", "blockquote", "img"),
    )
)
# Characters before and after a difference.
SURROUNDINGS = 50
VOID = frozenset(("br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"))
# Parts that the theme adds to the content.
ADDED_CLASSES = frozenset(("headerlink", "md-content__button", "md-source-file", "md-feedback"))
ADDED_IDS = frozenset(("__skip",))
ADDED_ELEMENTS = frozenset(("script", "style", "nav", "button", "form", "aside"))
_BOX = re.compile(r"^\[[ x]?\]")


class Outline(HTMLParser):
    """A reader of HTML that collects words and elements, within `article` if `is_page`."""

    def __init__(self, is_page: bool) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._is_inside = not is_page
        self._skipped = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "article":
            self._is_inside = True
        found = dict(attrs)
        classes = frozenset((found.get("class") or "").split())
        is_added = tag in ADDED_ELEMENTS or classes & ADDED_CLASSES or found.get("id") in ADDED_IDS
        if tag not in VOID and (self._skipped or is_added):
            self._skipped += 1
        elif self._is_inside and not self._skipped and tag in ELEMENTS:
            self.parts.append(f"<{tag}>")

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self._is_inside = False
        if self._skipped and tag not in VOID:
            self._skipped -= 1

    def handle_data(self, data: str) -> None:
        if self._is_inside and not self._skipped:
            self.parts += data.split()


def page_outline(html: str) -> list[str]:
    """Return the outline of the article of a built page."""
    return _outline(html, is_page=True)


def source_outline(text: str) -> list[str]:
    """Return the outline of a Markdown text, as GitHub shows the text."""
    return _outline(parser().render(text), is_page=False)


def first_difference(source: list[str], page: list[str]) -> str | None:
    """Return the text around the first difference of two outlines, or None if both are equal."""
    left, right = " ".join(source), " ".join(page)
    if left == right:
        return None
    same = next(
        (n for n, (one, other) in enumerate(zip(left, right, strict=False)) if one != other),
        min(len(left), len(right)),
    )
    place = slice(max(0, same - SURROUNDINGS), same + SURROUNDINGS)
    return f"{left[place]!r} became {right[place]!r}"


def _outline(html: str, is_page: bool) -> list[str]:
    outline = Outline(is_page)
    outline.feed(html)
    outline.close()
    # Splits between elements differ: `a,` of one text is `a` and `,` of two.
    return _joined(outline.parts)


def _joined(parts: list[str]) -> list[str]:
    joined: list[str] = []
    text = ""
    for part in parts:
        if part.startswith("<") and part.endswith(">") and part[1:-1] in ELEMENTS:
            joined += filter(None, [_without_box(text, joined)])
            joined.append(part)
            text = ""
        else:
            text += part
    return [*joined, *filter(None, [_without_box(text, joined)])]


def _without_box(text: str, before: list[str]) -> str:
    """Return the text without the box of a task list, which the site draws as an element."""
    return _BOX.sub("", text) if before[-1:] == ["<li>"] else text
