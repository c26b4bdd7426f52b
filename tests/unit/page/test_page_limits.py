"""Limits and lists of the page equal the values of server and command line."""

import re
from pathlib import Path

from control_plane.api.routes.model_code import SENT_BYTES_MAX
from detcloud.client.upload_filter import NOTED_IGNORED, QUIETLY_IGNORED
from detcloud.shared.archive_limits import FILE_BYTES_MAX, FILES_MAX

CREATE = Path(__file__).parents[3] / "web" / "src" / "views" / "create"


def constant(file: str, name: str) -> str:
    """Return the source text of a constant of the page."""
    found = re.search(rf"const {name} = (.*?);\n", (CREATE / file).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def number(file: str, name: str) -> int:
    product = 1
    for factor in constant(file, name).replace("_", "").split("*"):
        product *= int(factor)
    return product


def test_page_and_command_line_ignore_the_same_files() -> None:
    for name, patterns in (("QUIETLY_IGNORED", QUIETLY_IGNORED), ("NOTED_IGNORED", NOTED_IGNORED)):
        assert tuple(re.findall(r'"(.*?)"', constant("chosen_files.ts", name))) == patterns


def test_page_has_the_limits_of_archives() -> None:
    assert number("chosen_files.ts", "FILE_BYTES_MAX") == FILE_BYTES_MAX
    assert number("chosen_files.ts", "FILES_MAX") == FILES_MAX
    assert number("upload_code.ts", "THROUGH_API_BYTES_MAX") == SENT_BYTES_MAX
