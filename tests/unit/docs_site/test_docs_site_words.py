"""Words that documents may not use."""

from pathlib import Path

import pytest

from docs_site.word_checks import misspelled_words, read_replaced_words, replaced_words
from tests.conftest import require_installed

GLOSSARY = """# Glossary

## Words that documents replace

| instead of | say |
|---|---|
| `web UI` | web page |

## Words not used

| `turn` | step |
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text(GLOSSARY)
    return tmp_path


def test_replaced_words_are_found_outside_code(root: Path) -> None:
    text = "The web UI.\n\n```\nweb UI\n```\n\nA `web UI` in\nthe Web UI, a turn.\n"
    (root / "docs" / "a.md").write_text(text)
    assert list(replaced_words(root, ["docs/a.md", "docs/glossary.md"])) == [
        "docs/a.md:1: web UI: the glossary says web page",
        "docs/a.md:8: Web UI: the glossary says web page",
    ]


def test_records_of_the_past_may_use_any_word(root: Path) -> None:
    (root / "CHANGELOG.md").write_text("The web UI.\n")
    assert list(replaced_words(root, ["CHANGELOG.md"])) == []


def test_glossary_without_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no heading '## Words that documents replace'"):
        read_replaced_words("# Glossary\n")


def test_misspelled_words_are_found_outside_code(root: Path) -> None:
    require_installed("zensical")
    (root / "docs" / "a.md").write_text("Recieve it.\n\n```\nrecieve\n```\n\nA `recieve`.\n")
    assert list(misspelled_words(root, ["docs/a.md"])) == [
        "docs/a.md:1: Recieve: write Receive, or add the word to docs_site/typos.toml"
    ]
