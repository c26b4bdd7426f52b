"""Names and docstrings of the whole tree keep the language rules, and each rule can fail."""

import re

import pytest

from tests.unit.house.language import (
    GLOSSARY,
    LANGUAGE_RULES,
    docstrings_stand_alone,
    forbidden_terms,
    is_bare,
    names_are_verbs_or_nouns,
    terms_are_the_glossarys,
    texts_use_plain_words,
    variables_have_nouns,
    words_of,
)
from tests.unit.house.rules import Rule, Source, breaches
from tests.unit.house.tree_report import read_tree

API = "control_plane/api/app.py"
TESTS = "tests/unit/api/test_api_app.py"


@pytest.mark.parametrize("rule", LANGUAGE_RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps_the_language_rule(rule: Rule) -> None:
    breaches_found = read_tree().breaches[rule.__name__]
    assert not breaches_found, "\n".join(breaches_found)


@pytest.mark.parametrize(
    "name",
    [
        "listed",
        "_saved",
        "told",
        "carried_out",
        "taken_by",
        "Suggested",
        "_Kept",
        "beside",
        "after",
    ],
)
def test_rejects_names_of_participles_and_prepositions(name: str) -> None:
    assert is_bare(name)
    assert breaches(names_are_verbs_or_nouns, [Source(API, f"def {name}(): pass")])
    assert breaches(names_are_verbs_or_nouns, [Source(API, f"class {name}: pass")])


@pytest.mark.parametrize("text", ["[it.id for it in rows]", "key = lambda it: it", "it = 1"])
def test_rejects_variables_called_it(text: str) -> None:
    assert breaches(variables_have_nouns, [Source(TESTS, text)])
    assert not breaches(variables_have_nouns, [Source(TESTS, text.replace("it", "row"))])


@pytest.mark.parametrize(
    "name",
    ["write_job_row", "best_metric", "is_closed", "put", "seed", "read", "TrialExited",
     "SuggestedPoints", "put_mail", "closed_trials", "__init__", "_"],
)  # fmt: skip
def test_accepts_names_of_verbs_and_nouns(name: str) -> None:
    assert not is_bare(name)


def test_rejects_modules_named_by_participles() -> None:
    assert breaches(names_are_verbs_or_nouns, [Source("control_plane/api/stored.py", "")])
    assert not breaches(names_are_verbs_or_nouns, [Source("control_plane/api/__init__.py", "")])


@pytest.mark.parametrize(
    "first", ["It is there, as a whole.", "Those of every bracket.", "The way back.", "See `x`."]
)
def test_rejects_docstrings_with_vague_openings(first: str) -> None:
    for text in (
        f'"""{first}"""',
        f'def run():\n    """{first}"""',
        f'class A:\n    """{first}"""',
    ):
        assert breaches(docstrings_stand_alone, [Source(API, text)])


def test_accepts_docstrings_with_clear_openings() -> None:
    text = '"""Itself a word.\n\nIt goes on here.\n"""\ndef run():\n    """Run the server."""'
    assert not breaches(docstrings_stand_alone, [Source(API, text)])


def test_rejects_archaic_words() -> None:
    text = 'def run():\n    """Start the server anew."""\n    # Whoever asks.'
    first, second = breaches(texts_use_plain_words, [Source(API, text)])
    assert first == f"{API}:2: anew: write again"
    assert second.startswith(f"{API}:3: Whoever: write the role")
    assert not breaches(texts_use_plain_words, [Source(TESTS, text)])


def test_rejects_who_without_a_noun() -> None:
    text = "# Slots are held for who waits.\n# Ask who owns them, for the user who waits.\n"
    assert breaches(texts_use_plain_words, [Source(API, text)]) == [
        f"{API}:1: for who: put the noun before who"
    ]


def test_rejects_terms_that_the_glossary_replaces() -> None:
    word, instead = next(iter(forbidden_terms().items()))
    [breach] = breaches(terms_are_the_glossarys, [Source(API, f"def write_{word}(): pass")])
    assert breach == f"{API}:1: write_{word}: the glossary says {instead}, not {word}"


def test_names_of_tests_may_contain_any_word() -> None:
    word = next(iter(forbidden_terms()))
    text = f"def test_{word}(): pass\ndef test_told(): pass"
    assert all(not breaches(rule, [Source(TESTS, text)]) for rule in LANGUAGE_RULES)
    assert breaches(terms_are_the_glossarys, [Source(API, text)])


def test_helpers_of_tests_keep_the_language_rules() -> None:
    word = next(iter(forbidden_terms()))
    for rule, text in (
        (names_are_verbs_or_nouns, "def told(): pass"),
        (docstrings_stand_alone, 'def test_a_trial():\n    """It is told."""'),
        (terms_are_the_glossarys, f"def {word}(): pass"),
    ):
        assert breaches(rule, [Source(TESTS, text)])


def test_language_rules_do_not_apply_to_examples() -> None:
    text = 'def told():\n    """It is told."""'
    assert all(not breaches(rule, [Source("examples/x.py", text)]) for rule in LANGUAGE_RULES)


def test_splits_names_into_words() -> None:
    assert words_of("_TrialExited") == ["trial", "exited"]
    assert words_of("write_job_row2") == ["write", "job", "row2"]


def test_terms_of_the_glossary_are_unique() -> None:
    text, _, _ = GLOSSARY.read_text(encoding="utf-8").partition("\n## Words not used")
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    assert len(terms) > 50
    assert sorted(terms) == sorted(set(terms))
