"""Staging: the generator's input under build/, from the files of the repository."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath

from docs_site.dialect import to_python_markdown
from docs_site.links import rewrite_links
from docs_site.sources import LANGUAGES, REPOSITORY, Site, example_files, find_sources

CONFIGURATION = Path(__file__).with_name("zensical.toml")
ASSETS = Path(__file__).with_name("assets")
PAGES = "site-pages"


def stage(build: Path, url: str | None = None, root: Path = REPOSITORY) -> list[str]:
    """Write the generator's input under `build` and return all problems.

    Args:
        build: The folder for the input. Earlier input is deleted.
        url: The address of the published site, for the site map.
        root: The repository.
    """
    pages = build / PAGES
    shutil.rmtree(pages, ignore_errors=True)
    site = find_sources(root)
    problems: list[str] = []
    for source, place in site.pages.items():
        problems += _stage_page(
            (root / source).read_text(encoding="utf-8"), source, place, pages, site
        )
    for folder, place in site.examples.items():
        text = example_page(root / folder)
        problems += _stage_page(text, f"{folder}/README.md", place, pages, site)
    for source, place in site.pictures.items():
        (pages / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / source, pages / place)
    shutil.copytree(ASSETS, pages / "assets")
    configuration = CONFIGURATION.read_text(encoding="utf-8")
    if url:
        configuration = configuration.replace("[project]\n", f'[project]\nsite_url = "{url}"\n', 1)
    (build / CONFIGURATION.name).write_text(configuration, encoding="utf-8")
    return problems


def example_page(folder: Path) -> str:
    """Return a page with the README of an example and the text of each file."""
    readme = folder / "README.md"
    title = f"# {folder.name}\n"
    parts = [readme.read_text(encoding="utf-8") if readme.exists() else title]
    for path in example_files(folder):
        name = path.relative_to(folder).as_posix()
        text = path.read_text(encoding="utf-8").rstrip("\n")
        parts.append(f"## {name}\n\n```{LANGUAGES[path.suffix]}\n{text}\n```\n")
    return "\n".join(parts)


def _stage_page(text: str, source: str, place: str, pages: Path, site: Site) -> list[str]:
    """Write a page into the folder of pages; return the problems of its links."""
    rewritten, problems = rewrite_links(text, source, site)
    path = pages / PurePosixPath(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_python_markdown(rewritten), encoding="utf-8")
    return problems
