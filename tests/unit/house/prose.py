"""The share of sentences with pointing words, for each folder of the product.

A word such as "it", "those" or "what" is clear only from the context. A single such word is often
harmless, and two make a sentence hard to read. `python -m tests.unit.house.prose` measures all
folders and lowers the limits in `prose_limits.json` to the measured shares.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.unit.house.rules import PRODUCT, ROOT

LIMITS = Path(__file__).with_name("prose_limits.json")
# Shorter comments are labels rather than sentences.
COMMENT_WORDS_MIN = 8
TOLERANCE = 0.001
_POINTER = re.compile(
    r"\b(?:its?|itself|they|them|theirs?|those|these|ones?|what(?:ever)?|who(?:se|m|ever)|there"
    r"|so (?:many|much)|such|the (?:same|others?)|none|anew|beside|as far as|in turn|hence"
    r"|there(?:by|of|from))\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")


@dataclass(frozen=True)
class Shares:
    """Shares of sentences with pointing words, between 0 and 1."""

    docstrings: float = 0.0
    """First sentences of docstrings with a pointing word."""
    vague_docstrings: float = 0.0
    """First sentences of docstrings with two or more pointing words."""
    vague_comments: float = 0.0
    """Comments of at least COMMENT_WORDS_MIN words with two or more pointing words."""


def measure_folders() -> dict[str, Shares]:
    """Return the shares of each folder of the product."""
    counts: dict[str, list[list[int]]] = defaultdict(lambda: [[], []])
    for path in _files():
        sentences, comments = counts[folder_of(path.relative_to(ROOT).as_posix())]
        text = path.read_text(encoding="utf-8")
        sentences += [count_pointers(sentence) for sentence in first_sentences(text)]
        comments += [count_pointers(comment) for comment in long_comments(path)]
    return {
        folder: Shares(
            _share(sentences, least=1), _share(sentences, least=2), _share(comments, least=2)
        )
        for folder, (sentences, comments) in sorted(counts.items())
    }


def folder_of(path: str) -> str:
    """Return the folder that a file counts for: two levels of names, and three in `harness`."""
    parts = path.split("/")[:-1]
    return "/".join(parts[: 3 if parts[0] == "harness" else 2])


def count_pointers(sentence: str) -> int:
    """Return the number of pointing words, quoted text left out."""
    return len(_POINTER.findall(_QUOTED.sub("x", sentence)))


def first_sentences(text: str) -> Iterator[str]:
    """Yield the first sentence of each docstring of a module."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            yield re.split(r"(?<=[.!?])\s", " ".join(docstring.split()), maxsplit=1)[0]


def long_comments(path: Path) -> Iterator[str]:
    """Yield comments of at least COMMENT_WORDS_MIN words; adjacent lines are a single comment."""
    block: list[str] = []
    last = -1
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    for token in tokens:
        if token.type != tokenize.COMMENT or not token.line.lstrip().startswith("#"):
            continue
        if token.start[0] != last + 1:
            yield from _long(block)
            block = []
        block.append(token.string.lstrip("# "))
        last = token.start[0]
    yield from _long(block)


def read_limits() -> dict[str, Shares]:
    """Return the largest allowed shares of each folder."""
    limits = json.loads(LIMITS.read_text(encoding="utf-8"))
    return {folder: Shares(**shares) for folder, shares in limits.items()}


def find_excesses(measured: dict[str, Shares], limits: dict[str, Shares]) -> list[str]:
    """Return a line for each share above the limit. A folder without limits may point nowhere."""
    excesses = []
    for folder, shares in measured.items():
        allowed = asdict(limits.get(folder, Shares()))
        for name, share in asdict(shares).items():
            if share > allowed[name] + TOLERANCE:
                excesses.append(f"{folder}: {name} {share:.1%}, at most {allowed[name]:.1%}")
    return excesses


def _files() -> Iterator[Path]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "_server" not in path.parts:
                yield path


def _long(block: list[str]) -> Iterator[str]:
    comment = " ".join(block)
    if len(comment.split()) >= COMMENT_WORDS_MIN:
        yield comment


def _share(counts: list[int], *, least: int) -> float:
    return sum(count >= least for count in counts) / len(counts) if counts else 0.0


def _lower_limits() -> None:
    """Replace each limit by the measured share if that is lower. New folders get their shares."""
    measured = measure_folders()
    limits = read_limits() if LIMITS.exists() else measured
    lowered = {}
    for folder, shares in measured.items():
        allowed = asdict(limits.get(folder, shares))
        pairs = {name: min(share, allowed[name]) for name, share in asdict(shares).items()}
        lowered[folder] = {name: round(share, 4) for name, share in pairs.items()}
    LIMITS.write_text(json.dumps(lowered, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Lower the limits. `--help` and unknown options exit and write nothing."""
    description = f"Lower the limits in {LIMITS.name} to the measured shares."
    argparse.ArgumentParser(
        prog="python -m tests.unit.house.prose", description=description
    ).parse_args(arguments)
    _lower_limits()


if __name__ == "__main__":
    main()
