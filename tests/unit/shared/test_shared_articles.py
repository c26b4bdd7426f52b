"""Nouns get the indefinite article of their sound."""

import pytest

from detcloud.shared.articles import with_article


@pytest.mark.parametrize(
    "text",
    [
        "a dict", "a str", "a NoneType", "an int", "an Event", "an object", "an ndarray",
        "a uint8", "a UUID", "a OneCycleLR", "a EulerScheduler",
    ],
)  # fmt: skip
def test_article_follows_the_sound_of_the_noun(text: str) -> None:
    assert with_article(text.partition(" ")[2]) == text
