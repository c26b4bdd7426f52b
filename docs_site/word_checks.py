"""Checks of the words of the documents: spelling, and terms that the glossary replaces."""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from docs_site.links import CODE
from docs_site.sources import REPOSITORY, find_sources

SPELLING = Path(__file__).with_name("typos.toml")
GLOSSARY = "docs/glossary.md"
HEADING = "## Words that documents replace"
# Records of the past, pages about Determined's words, and the list itself.
MAY_USE_ANY_WORD = ("CHANGELOG.md", "docs/decisions/", "docs/migrating.md", GLOSSARY)
_ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \|$", re.MULTILINE)


def check_words(root: Path = REPOSITORY) -> list[str]:
    """Return all misspelled and replaced words of the documents."""
    sources = [*find_sources(root).pages, "README.md"]
    return [*misspelled_words(root, sources), *replaced_words(root, sources)]


def misspelled_words(root: Path, sources: list[str]) -> Iterator[str]:
    """Yield the misspelled words of the documents, found by the program typos."""
    program = Path(sysconfig.get_path("scripts")) / "typos"
    done = subprocess.run(
        [str(program), "--config", str(SPELLING), "--format", "json", *sources],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    for finding in findings:
        if finding.get("type") == "typo":
            place = f"{finding['path']}:{finding['line_num']}"
            yield (
                f"{place}: {finding['typo']}: write {' or '.join(finding['corrections'])}, or add "
                f"the word to {SPELLING.relative_to(REPOSITORY)}"
            )
    # 0: no finding; 2: findings. Any other code is an error of the program.
    if done.returncode not in (0, 2):
        yield f"{program} ended with exit code {done.returncode}: {done.stderr.strip()}"


def replaced_words(root: Path, sources: list[str]) -> Iterator[str]:
    """Yield the words of the documents that the glossary replaces, outside code."""
    words = read_replaced_words((root / GLOSSARY).read_text(encoding="utf-8"))
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b", re.IGNORECASE)
    for source in sources:
        if source.startswith(MAY_USE_ANY_WORD):
            continue
        lines = text_without_code((root / source).read_text(encoding="utf-8")).splitlines()
        for number, line in enumerate(lines, 1):
            for found in pattern.findall(line):
                yield f"{source}:{number}: {found}: the glossary says {words[found.lower()]}"


def read_replaced_words(glossary: str) -> dict[str, str]:
    """Return the replacement of each word of the glossary's table."""
    _, found, rest = glossary.partition(f"\n{HEADING}\n")
    if not found:
        raise ValueError(f"{GLOSSARY} has no heading {HEADING!r}, whose table names replaced words")
    table, _, _ = rest.partition("\n## ")
    return {word.lower(): instead for word, instead in _ROW.findall(table)}


def text_without_code(text: str) -> str:
    """Return the text without blocks and spans of code, with the same number of lines."""
    return CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
