"""Builds all pages of the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from docs_site.anchors import anchor_of
from docs_site.python_reference import determined_names
from docs_site.python_reference.collection import Collector
from docs_site.python_reference.entries import Entry, Page
from docs_site.python_reference.examples_reader import read_examples
from docs_site.python_reference.gaps import find_field_gaps, find_gaps
from docs_site.python_reference.markdown import render_index, render_page
from docs_site.python_reference.records import record_subjects
from docs_site.python_reference.source import ParserLog, SourceProblem, Sources
from docs_site.python_reference.subjects import PAGES, PageSubjects, Subject

INDEX = "README.md"
RECORDS = "records.md"
INTRODUCTION = """\
Scripts and training code import the package `detcloud`, which `pip install detcloud` installs. The
client needs no other package. `detcloud.pytorch` needs the extra `torch`, and each
[framework](../frameworks.md) has an extra of its own."""


def render_pages(pages: Sequence[PageSubjects] = PAGES) -> dict[str, str]:
    """Return the text of each page by the name in docs/python.

    Raises:
        SourceProblem: a name does not exist, a docstring cannot be read, an entry lacks an example
            or a description, or an example belongs to no entry.
    """
    with ParserLog() as log:
        sources = Sources()
        built, places = build_pages(sources, pages)
    gaps = [gap for page in built for gap in _page_gaps(page)]
    if problems := [*log.messages, *gaps]:
        raise SourceProblem("\n".join(problems))
    texts = {page.file: render_page(page, places) for page in built}
    names = determined_names.render_names(_places_by_path(sources, pages))
    texts[determined_names.PAGE] += f"\n{names}\n"
    return {INDEX: render_index(INTRODUCTION, built), **texts}


def build_pages(
    sources: Sources, pages: Sequence[PageSubjects]
) -> tuple[list[Page], dict[str, str]]:
    """Return all pages, and the page and anchor of each class by canonical path."""
    places = {
        sources.find(subject.path).canonical_path: _place(page, subject)
        for page in pages
        for subject in page.subjects
    }
    built = list[Page]()
    for page in pages:
        collector = Collector(sources, frozenset(places))
        if page.records:
            entries = _record_entries(collector, page, built, places)
            built.append(Page(page.file, page.title, page.introduction, entries))
        else:
            built.append(_build_page(collector, page))
    return built, places


def _build_page(collector: Collector, page: PageSubjects) -> Page:
    examples = read_examples(*page.scripts)
    entries = [collector.entry(subject, examples.cells) for subject in page.subjects]
    titles = {entry.title for top in entries for entry in (top, *top.members)}
    if unknown := examples.cells.keys() - titles:
        raise SourceProblem(
            f"{page.file}: examples of names without an entry: {', '.join(sorted(unknown))}"
        )
    return Page(page.file, page.title, page.introduction, entries, examples.setup)


def _page_gaps(page: Page) -> Iterator[str]:
    """Yield the gaps of a page. Records need no example: methods that return them have one."""
    for entry in page.entries:
        if page.file == RECORDS:
            yield from find_field_gaps(entry)
        else:
            # Methods of Determined are documented there.
            yield from find_gaps(entry, has_methods=page.file != determined_names.PAGE)


def _record_entries(
    collector: Collector, page: PageSubjects, built: Sequence[Page], places: dict[str, str]
) -> list[Entry]:
    """Return the entries of the records that earlier pages mention, and add them to `places`."""
    entries = list[Entry]()
    mentions = [entry for earlier in built for entry in earlier.entries]
    while records := record_subjects(mentions, page.records, set(places)):
        places |= {record.path: _place(page, record) for record in records}
        mentions = [collector.entry(record, {}) for record in records]
        entries += mentions
    return sorted(entries, key=lambda entry: entry.title)


def _places_by_path(sources: Sources, pages: Sequence[PageSubjects]) -> dict[str, str]:
    """Return the page and anchor of each class and function, by every path of an entry.

    The paths are the path for imports and the canonical path.
    """
    found = dict[str, str]()
    for page in pages:
        for subject in page.subjects:
            for path in (subject.path, sources.find(subject.path).canonical_path):
                found.setdefault(path, _place(page, subject))
    return found


def _place(page: PageSubjects, subject: Subject) -> str:
    return f"{page.file}#{anchor_of(subject.title)}"
