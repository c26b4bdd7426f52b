"""Links of a page, changed from paths of the repository to paths of the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

from docs_site.anchors import anchor_of
from docs_site.sources import Site

# Blocks and spans of code contain no links.
# A span of code may contain a line break, but no empty line.
CODE = re.compile(
    r"^ *```.*?^ *```$|(?<!`)(`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)\1(?!`)", re.MULTILINE | re.DOTALL
)
# An inline link, or the definition of a link that the text refers to.
_LINK = re.compile(r"(\]\(|^\[[^\]\n]+\]: )([^)\s]+)(\)|$)", re.MULTILINE)
_FOREIGN = re.compile(r"[a-z]+:|#")


def rewrite_links(text: str, source: str, site: Site) -> tuple[str, list[str]]:
    """Return the text of a page with links that are relative in the site, and all problems.

    A problem is a link to a file that is not part of the site.
    """
    problems: list[str] = []
    here = posixpath.dirname(site.pages.get(source) or site.examples[posixpath.dirname(source)])

    def rewrite(link: re.Match[str]) -> str:
        if _FOREIGN.match(link[2]):
            return link[0]
        path, mark, anchor = link[2].partition("#")
        place = target_place(
            posixpath.normpath(posixpath.join(posixpath.dirname(source), path)), site
        )
        if place is None:
            problems.append(
                f"{source}: the link {link[2]} leads to no page of the site: link a page of docs/ "
                "or an example, or write the path as code"
            )
            return link[0]
        place, _, file_anchor = place.partition("#")
        if file_anchor and not anchor:
            mark, anchor = "#", file_anchor
        return f"{link[1]}{posixpath.relpath(place, here or '.')}{mark}{anchor}{link[3]}"

    return replace_outside_code(text, lambda part: _LINK.sub(rewrite, part)), problems


def target_place(path: str, site: Site) -> str | None:
    """Return the place in the site of a file or folder of the repository, or None.

    The place of an example's file is a heading of the example's page.
    """
    for places in (site.pages, site.pictures, site.examples):
        if path in places:
            return places[path]
    if f"{path}/README.md" in site.pages:
        return site.pages[f"{path}/README.md"]
    for folder, place in site.examples.items():
        if path == f"{folder}/README.md":
            return place
        if path.startswith(f"{folder}/"):
            return f"{place}#{anchor_of(path.removeprefix(f'{folder}/'))}"
    return None


def replace_outside_code(text: str, replace: Callable[[str], str]) -> str:
    """Return the text with `replace` applied to all parts but code."""
    parts: list[str] = []
    end = 0
    for code in CODE.finditer(text):
        parts += [replace(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, replace(text[end:])])
