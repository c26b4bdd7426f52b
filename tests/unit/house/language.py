"""The house rules on language: names are verbs or nouns, docstrings are clear, terms are unique."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import PurePosixPath

from tests.unit.house.rules import ROOT, Rule, Source, word_set

GLOSSARY = ROOT / "docs" / "glossary.md"

# Forms that are also verbs or nouns: `put_mail`, `seed`, `split`.
NOT_ONLY_PARTICIPLES = word_set(
    "put set cut read split feed seed need embed shed speed exceed proceed succeed run become "
    "overrun bid bed deepspeed"
)
IRREGULAR_PARTICIPLES = word_set(
    "told said kept known shown given taken made done seen found held left sent begun gone drawn "
    "written paid lost met spent thrown bound built caught chosen come fed grown heard hidden "
    "laid led meant sought stood struck thought undone worn won driven forgotten broken spoken "
    "frozen forbidden sworn torn overdue"
)
ADVERBS_AND_PREPOSITIONS = word_set(
    "of as at in on to by up out off back again alone anew apart from for with now already here "
    "there below above over under so far yet too before after beside besides outside inside aside "
    "away once only still alike elsewhere together"
)
ADJECTIVES = word_set(
    "whole own new old same other ready idle busy late early next last first certain sure"
)
VAGUE_OPENING = re.compile(
    r"(It|Its|They|Them|Their|Those|These|That|This|The same|The way back|See|As|Whether it|What"
    r"|Who|Whose|Of|Where|Beside)\b"
)

# Archaic words with replacements: readers stumble over archaic words, and translators fail.
ARCHAIC_WORDS = {
    "anew": "again",
    "whoever": "the role: the caller, the deployer, the reader",
    "likewise": "in the same way",
}
ARCHAIC_WORD = re.compile(rf"\b({'|'.join(ARCHAIC_WORDS)})\b", re.IGNORECASE)
# "for who waits" has no noun before "who": write "for the requests that wait".
HEADLESS_WHO = re.compile(r"\b(?:for|by|to|as|from|than) who\b", re.IGNORECASE)

Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def names_are_verbs_or_nouns(source: Source) -> Iterator[str]:
    """Yield each function, class and module with a name of participles or adverbs alone."""
    if not _is_ours_to_read(source):
        return
    stem = PurePosixPath(source.path).stem
    if is_bare(stem):
        yield f"1: the module is named {stem}: name it by a noun"
    for node in _definitions(source):
        if is_bare(node.name):
            yield f"{node.lineno}: {node.name} is neither a verb with its object nor a noun"


def variables_have_nouns(source: Source) -> Iterator[str]:
    """Yield each variable with the name `it`, which does not name the content."""
    for node in source.nodes:
        is_variable = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        if isinstance(node, ast.Name | ast.arg) and (is_variable or isinstance(node, ast.arg)):
            name = node.id if isinstance(node, ast.Name) else node.arg
            if name == "it":
                yield f"{node.lineno}: a variable is called it: name it by its noun"


def docstrings_stand_alone(source: Source) -> Iterator[str]:
    """Yield each docstring with an opening that refers to an unnamed thing."""
    if not _is_ours_to_read(source):
        return
    for node in (source.tree, *_definitions(source)):
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        if VAGUE_OPENING.match(first):
            line = 1 if isinstance(node, ast.Module) else node.lineno
            yield f"{line}: a docstring opens with {' '.join(first.split()[:3])!r}"


def texts_use_plain_words(source: Source) -> Iterator[str]:
    """Yield archaic words in the product's docstrings, comments and messages."""
    if not source.is_product:
        return
    for number, line in enumerate(source.text.splitlines(), 1):
        for word in ARCHAIC_WORD.findall(line):
            yield f"{number}: {word}: write {ARCHAIC_WORDS[word.lower()]}"
        for words in HEADLESS_WHO.findall(line):
            yield f"{number}: {words}: put the noun before who"


def terms_are_the_glossarys(source: Source) -> Iterator[str]:
    """Yield each definition with a word that the glossary replaces."""
    if not _is_ours_to_read(source):
        return
    for node in _definitions(source):
        for word in words_of(node.name):
            if word in forbidden_terms() and not _is_sentence(source, node):
                instead = forbidden_terms()[word]
                yield f"{node.lineno}: {node.name}: the glossary says {instead}, not {word}"


def is_bare(name: str) -> bool:
    """Return whether a name has no noun or verb, only participles, adjectives or prepositions."""
    first, *others = words_of(name) or [""]
    stands_alone = first in ADVERBS_AND_PREPOSITIONS | ADJECTIVES or _is_participle(first)
    return stands_alone and all(word in ADVERBS_AND_PREPOSITIONS for word in others)


def words_of(name: str) -> list[str]:
    """Return the words of a name in snake case or camel case, in lower case."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
    return [part for part in parts if part]


@cache
def forbidden_terms() -> dict[str, str]:
    """Return the words of the glossary's last table with the replacements."""
    _, _, table = GLOSSARY.read_text(encoding="utf-8").partition("\n## Words not used")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|$", table, re.MULTILINE)
    return {word: instead.replace("`", "") for word, instead in rows}


def _is_participle(word: str) -> bool:
    is_regular = len(word) > 3 and word.endswith("ed") and word not in NOT_ONLY_PARTICIPLES
    return is_regular or word in IRREGULAR_PARTICIPLES


def _is_ours_to_read(source: Source) -> bool:
    """Return whether the file belongs to the product, the bench or the tests."""
    return source.is_product or source.path.startswith(("bench/", "tests/"))


def _is_sentence(source: Source, node: Named) -> bool:
    """Return whether a name is the name of a test, which may contain any word."""
    return source.path.startswith("tests/") and node.name.startswith("test_")


def _definitions(source: Source) -> Iterator[Named]:
    for node in source.nodes:
        if isinstance(node, Named):
            yield node


LANGUAGE_RULES: tuple[Rule, ...] = (
    names_are_verbs_or_nouns,
    variables_have_nouns,
    docstrings_stand_alone,
    texts_use_plain_words,
    terms_are_the_glossarys,
)
