"""Lists of GitHub's Markdown in the dialect of the generator."""

import pytest

from docs_site.dialect import to_python_markdown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A list begins after an empty line.
        ("Two:\n- a\n- b\n", "Two:\n\n- a\n- b\n"),
        ("Two:\n\n1. a\n2. b\n", "Two:\n\n1. a\n2. b\n"),
        # A nested list and a second paragraph are indented by four columns.
        ("- a\n  - b\n    - c\n", "- a\n    - b\n        - c\n"),
        ("1. a\n\n   more\n", "1. a\n\n    more\n"),
        ("- a\n  continues\n", "- a\n    continues\n"),
        # Code in a list keeps its own indentation.
        ("- a\n\n  ```\n    x\n  ```\n", "- a\n\n    ```\n      x\n    ```\n"),
        # A pipe in code is escaped in GitHub's tables only.
        ("| a |\n|---|\n| `x\\|y` |\n", "| a |\n|---|\n| `x|y` |\n"),
        ("a `x\\|y`\n", "a `x\\|y`\n"),
        # Only the language of a block of code stays.
        ("```tour create\nx\n```\n", "```tour\nx\n```\n"),
        # Text without lists stays the same, also what looks like a list in code.
        ("a\n\n```\nx\n- y\n```\n", "a\n\n```\nx\n- y\n```\n"),
    ],
)
def test_lists_have_the_generators_indentation(text: str, expected: str) -> None:
    assert to_python_markdown(text) == expected
