"""The files of the repository that become pages of the site, and the places of these pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

REPOSITORY = Path(__file__).resolve().parents[1]
PATTERNS = (
    "docs/**/*.md",
    "images/README.md",
    "tests/README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
# Fragments of the changelog are no pages.
FRAGMENTS = "docs/changes/*/*"
PICTURES = "docs/pictures/**/*.png"
EXAMPLES = "examples"
# Languages of code blocks, by the suffix of an example's file. Other files are left out.
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json"}


@dataclass(frozen=True)
class Site:
    """The content of a site. All paths are relative, with slashes."""

    pages: dict[str, str]
    """The place of each page's source in the site, by the source's path in the repository."""
    pictures: dict[str, str]
    """The place of each picture in the site, by the path in the repository."""
    examples: dict[str, str]
    """The place of the page of each example, by the path of the example's folder."""


def find_sources(root: Path = REPOSITORY) -> Site:
    """Return the pages, pictures and examples of the repository at `root`."""
    pages = {
        source: page_place(source)
        for pattern in PATTERNS
        for source in _paths(root, pattern)
        if not PurePosixPath(source).match(FRAGMENTS)
    }
    pictures = {source: page_place(source) for source in _paths(root, PICTURES)}
    examples = {
        path.relative_to(root).as_posix(): f"{path.relative_to(root).as_posix()}/index.md"
        for path in sorted((root / EXAMPLES).iterdir())
        if path.is_dir() and any(path.glob("*.py"))
    }
    return Site(pages, pictures, examples)


def page_place(source: str) -> str:
    """Return the place in the site of a file of the repository.

    The folder `docs` is the root of the site. `docs/README.md` is the first page.
    """
    path = PurePosixPath(source)
    if path.parts[0] == "docs":
        path = PurePosixPath(*path.parts[1:])
    elif len(path.parts) == 1:
        return path.name.lower()
    return path.with_name("index.md").as_posix() if path.name == "README.md" else path.as_posix()


def example_files(folder: Path) -> list[Path]:
    """Return the files of an example that its page shows, sorted by path."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in LANGUAGES and "__pycache__" not in path.parts and "data" not in path.parts
    )


def _paths(root: Path, pattern: str) -> Iterator[str]:
    for path in sorted(root.glob(pattern)):
        yield path.relative_to(root).as_posix()
