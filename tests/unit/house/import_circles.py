"""The imports between the files of the product, and the circles that imports form.

A circle is a set of files of which each imports, directly or over others, every other file.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from tests.unit.house.rules import PRODUCT, ROOT, Source, sources

Imports = Mapping[str, frozenset[str]]
"""For each file the imported files. Files are paths from the root of the repository."""

PAGE = "web/src"
PAGE_SUFFIXES = (".ts", ".tsx")
_PAGE_IMPORT = re.compile(r"""\b(?:from|import)\s*\(?\s*["'](\.[^"']*)["']""")


def python_imports(files: Iterable[Source]) -> Imports:
    """Return the imports between Python files.

    Imports in functions and imports for the type checker count. Modules that are imported by a
    computed name do not count.
    """
    files = list(files)
    paths = {_module_name(file.path): file.path for file in files}
    return {
        file.path: frozenset(
            found
            for _, name in file.imports()
            if (found := _find_module(name, paths)) not in (None, file.path)
        )
        for file in files
    }


def page_imports(texts: Mapping[str, str]) -> Imports:
    """Return the imports between TypeScript files; `texts` has the text of each file by path.

    Imports of types and imports in functions count.
    """
    return {
        path: frozenset(
            f"{target}{suffix}"
            for name in _PAGE_IMPORT.findall(text)
            for target in [posixpath.normpath(posixpath.join(posixpath.dirname(path), name))]
            for suffix in PAGE_SUFFIXES
            if f"{target}{suffix}" in texts
        )
        for path, text in texts.items()
    }


def find_circles(imports: Imports) -> list[tuple[str, ...]]:
    """Return the circles, sorted, each as the sorted paths of the files."""
    open_imports = _without_ends(imports)
    reachable = {path: _reachable(open_imports, path) for path in open_imports}
    circles = {
        tuple(sorted(other for other in reachable[path] if path in reachable[other]))
        for path in open_imports
    }
    return sorted(circle for circle in circles if circle)


@cache
def product_imports(root: Path = ROOT) -> Imports:
    """Return the imports between files of the product, in Python and in the page's TypeScript."""
    python = [file for file in sources(root) if file.path.split("/")[0] in PRODUCT]
    texts = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in (root / PAGE).rglob("*")
        if path.suffix in PAGE_SUFFIXES
    }
    return {**python_imports(python), **page_imports(texts)}


def render_circle(circle: tuple[str, ...], imports: Imports) -> str:
    """Return a line for each import within the circle."""
    return "\n".join(
        f"{path} imports {', '.join(sorted(imports[path] & {*circle}))}" for path in circle
    )


def _module_name(path: str) -> str:
    parts = path.removeprefix("harness/").removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _find_module(name: str, paths: Mapping[str, str]) -> str | None:
    """Return the path of the module that `name` is or belongs to. None for a foreign name."""
    while name and name not in paths:
        name = name.rpartition(".")[0]
    return paths.get(name)


def _without_ends(imports: Imports) -> Imports:
    """Return the imports without the files that import no file, repeatedly."""
    left = dict(imports)
    while ends := [path for path, imported in left.items() if not imported & left.keys()]:
        for path in ends:
            del left[path]
    return {path: imported & left.keys() for path, imported in left.items()}


def _reachable(imports: Imports, start: str) -> set[str]:
    """Return the files that `start` imports, directly or over others."""
    found: set[str] = set()
    waiting = [*imports[start]]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(imports[path])
    return found
