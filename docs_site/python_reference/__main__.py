"""`python -m docs_site.python_reference` writes the pages of docs/python."""

from __future__ import annotations

import sys

from docs_site.python_reference.pages import render_pages
from docs_site.python_reference.source import SourceProblem
from docs_site.sources import REPOSITORY

FOLDER = REPOSITORY / "docs" / "python"


def main() -> int:
    """Write all pages, and delete pages that no longer exist. Write nothing after an error.

    Return the exit code.
    """
    try:
        pages = render_pages()
    except SourceProblem as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.md"):
        if path.name not in pages:
            path.unlink()
    for name, text in pages.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
