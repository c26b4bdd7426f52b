"""Paragraphs, lists and table cells of the documents stay short enough to read."""

from tests.unit.house.paragraphs import EXCEPTIONS, Wall, all_walls, excesses, find_walls


def test_documents_have_no_walls_of_text() -> None:
    assert excesses(all_walls(), EXCEPTIONS) == []


def test_long_paragraph_and_long_item_are_found() -> None:
    # Limit: 120 words.
    text = f"{'word ' * 60}\n{'word ' * 60}\n\n- {'word ' * 121}\n- short\n"
    assert list(find_walls(text)) == [(4, "paragraph of 122 words, at most 120")]


def test_long_list_without_blank_lines_is_found() -> None:
    # 30 items of a hyphen and 9 words: 300 words, at most 250.
    item = f"- {'word ' * 9}\n"
    assert list(find_walls(item * 30)) == [(1, "list of 300 words, at most 250")]
    assert list(find_walls(item * 20 + "\n" + item * 10)) == []


def test_long_cell_is_found_without_addresses_of_links() -> None:
    row = f"| a | [{'x' * 249}](page.md#{'y' * 99}) |\n"
    assert list(find_walls(row)) == []
    assert list(find_walls(row.replace("| a", f"| {'a' * 251}"))) == [
        (1, "cell of 251 characters, at most 250")
    ]


def test_code_is_no_wall() -> None:
    assert list(find_walls(f"```\n{'word ' * 300}\n```\n")) == []


def test_exceptions_are_exact() -> None:
    walls = [Wall("a.md", 3, "cell of 300 characters, at most 250")]
    assert excesses(walls, {"a.md": 1}) == []
    assert excesses(walls, {"a.md": 2}) == ["a.md: lower its exception from 2 to 1"]
    assert excesses(walls, {}) == [
        "a.md: 0 allowed, split or shorten line 3: cell of 300 characters, at most 250"
    ]
