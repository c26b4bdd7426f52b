"""The fragments of docs/changes are valid for towncrier, and the changelog has all topics."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.unit.house.rules import ROOT

CHANGES = ROOT / "docs" / "changes"
TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
TOPICS = {section["path"]: section["name"] for section in TOWNCRIER["section"]}
KINDS = {kind["directory"] for kind in TOWNCRIER["type"]}
FILES = {"README.md", "template.md.jinja"}
SENTENCES_MAX = 3


def problems_of(path: str, text: str) -> list[str]:
    """Return the problems of a fragment with a path below docs/changes; empty if valid."""
    topic, _, name = path.rpartition("/")
    parts = re.fullmatch(r"\d{4}-[a-z0-9-]+\.([a-z]+)\.md", name)
    problems = [] if topic in TOPICS else [f"the topic is one of {', '.join(TOPICS)}"]
    if parts is None or parts[1] not in KINDS:
        problems.append(f"the name is NNNN-slug.KIND.md, with a KIND of {', '.join(sorted(KINDS))}")
    if not text.strip() or text.startswith(("-", "#")):
        problems.append("the text is a sentence, without a list mark or a heading")
    if len(re.findall(r"[.!?](?:\s|$)", text)) > SENTENCES_MAX:
        problems.append(f"the text has at most {SENTENCES_MAX} sentences")
    return problems


def fragments() -> dict[str, Path]:
    """Return the fragments by path below docs/changes."""
    paths = {path.relative_to(CHANGES).as_posix(): path for path in CHANGES.rglob("*")}
    return {name: path for name, path in paths.items() if path.is_file() and name not in FILES}


def test_changelog_fragments_are_valid() -> None:
    problems_by_name = {
        name: problems_of(name, path.read_text()) for name, path in fragments().items()
    }
    assert not {name: problems for name, problems in problems_by_name.items() if problems}


def test_fragment_numbers_are_unique() -> None:
    numbers = [Path(name).name[:4] for name in fragments()]
    assert len(numbers) == len(set(numbers))


def test_changelog_has_the_topics_of_the_fragments() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert TOWNCRIER["start_string"] in text
    unreleased = text.partition("## [Unreleased]\n")[2].partition("\n## [")[0]
    # The section ends with the first release that is made from fragments.
    used = re.findall(r"^### (.+)$", unreleased, re.MULTILINE)
    assert used == [name for name in TOPICS.values() if name in used]


@pytest.mark.parametrize(
    ("path", "text", "problem"),
    [
        ("0001-a.added.md", "A sentence.", "the topic is one of"),
        ("storage/a.added.md", "A sentence.", "the name is"),
        ("storage/0001-a.new.md", "A sentence.", "the name is"),
        ("storage/0001-a.added.md", "- A sentence.", "without a list mark"),
        ("storage/0001-a.added.md", "A. B. C. D.", "at most 3 sentences"),
    ],
)
def test_reports_problems_of_fragments(path: str, text: str, problem: str) -> None:
    (found,) = problems_of(path, text)
    assert problem in found


def test_accepts_a_fragment() -> None:
    assert problems_of("storage/0001-a.added.md", "A sentence.") == []
