"""Messages that the documents quote are the messages of the code.

A quote is a span of code in a document that reads as a message: three words and more, in lower
case, without the characters of commands. Numbers, single letters and dots stand for values. The
words between values must occur in texts of the code, in pieces of two words and more.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.house.rules import ROOT

SOURCES = (
    "control_plane",
    "harness/detcloud",
    "provisioner",
    "lambdas",
    "simulator",
    "local_cluster",
    "relay",
    "infra",
)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# Characters of commands, code and tables; names of variables and of exceptions; formulas.
NO_MESSAGE = re.compile(r"[{}\[\]<>$|=()×^/]|--|[A-Z]{3,}|\.py\b")
PROGRAMS = (
    "detcloud", "deploy", "command", "python", "python3", "pip", "make", "det", "openssl", "aws",
    "entrypoint:", "npm", "gcloud",
)  # fmt: skip
# Messages of the operating system.
FOREIGN = ("Address already in use", "Connection refused")
VALUE = re.compile(r"\S*\d\S*|\.\.\.|[a-z]")


def is_message(span: str) -> bool:
    words = span.split()
    return (
        len(words) >= 3
        and span == span.strip()
        and words[0] not in PROGRAMS
        and words[0][0].islower()
        and NO_MESSAGE.search(span) is None
    )


def quotes() -> Iterator[tuple[str, str]]:
    for page in sorted((ROOT / "docs").glob("*.md")):
        text = FENCED.sub("", page.read_text("utf-8"))
        yield from ((page.name, span) for span in SPAN.findall(text) if is_message(span))


@cache
def texts_of_code() -> str:
    """Return all texts of the code but docstrings, a line each; values are null characters."""
    found: list[str] = []
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found += texts_of(path)
    return "\n".join(found)


def texts_of(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as docstring):
                # The walk reaches the constant of a docstring later, and a docstring is no message.
                docstring.value = None
            case ast.Constant(value=str(text)):
                yield " ".join(text.split())
            case ast.JoinedStr(values=values):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in values)
                yield " ".join("".join(map(str, parts)).split())


def runs_of_words(quote: str) -> list[list[str]]:
    """Return the words of a quote between values; a noun after a number counts as a value."""
    runs: list[list[str]] = [[]]
    for clause in re.split(r"[;:,] ", quote):
        words = clause.split()
        for place, word in enumerate(words):
            counted = place > 0 and words[place - 1].isdigit()
            if VALUE.fullmatch(word.strip(",:;")) or counted:
                runs.append([])
            else:
                runs[-1].append(word)
        runs.append([])
    return [run for run in runs if len(run) > 1]


def is_in_code(words: list[str]) -> bool:
    """Return whether the words are a sequence of texts of the code, of at least two words each."""
    if not words:
        return True
    sizes = range(len(words), 1, -1)
    return any(
        " ".join(words[:size]).strip(".") in texts_of_code() and is_in_code(words[size:])
        for size in sizes
    )


@pytest.mark.parametrize(("page", "quote"), list(dict.fromkeys(quotes())))
def test_quoted_message_exists_in_the_code(page: str, quote: str) -> None:
    for foreign in FOREIGN:
        quote = quote.removesuffix(foreign)
    assert [run for run in runs_of_words(quote) if not is_in_code(run)] == []


def test_stale_quoted_message_is_found() -> None:
    stale = "needs 16 slots of unused agents, 8 free on such"
    assert [run for run in runs_of_words(stale) if not is_in_code(run)]
    present = "needs 16 slots on agents without other work, 8 free there"
    assert not [run for run in runs_of_words(present) if not is_in_code(run)]
