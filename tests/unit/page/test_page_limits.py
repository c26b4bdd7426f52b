"""Limits and lists of the page equal the values of server and command line."""

import re
from pathlib import Path

from control_plane.api.routes.logs import RANKS_MAX, TRIALS_MAX
from control_plane.api.routes.model_code import SENT_BYTES_MAX
from detcloud.client.upload_filter import NOTED_IGNORED, QUIETLY_IGNORED
from detcloud.shared.archive_limits import FILE_BYTES_MAX, FILES_MAX

VIEWS = Path(__file__).parents[3] / "web" / "src" / "views"
CREATE = VIEWS / "create"
LOGS = VIEWS / "logs"


def constant(file: str, name: str, folder: Path = CREATE) -> str:
    """Return the source text of a constant of the page."""
    found = re.search(rf"const {name} = (.*?);\n", (folder / file).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def number(file: str, name: str, folder: Path = CREATE) -> int:
    product = 1
    for factor in constant(file, name, folder).replace("_", "").split("*"):
        product *= int(factor)
    return product


def test_page_and_command_line_ignore_the_same_files() -> None:
    for name, patterns in (("QUIETLY_IGNORED", QUIETLY_IGNORED), ("NOTED_IGNORED", NOTED_IGNORED)):
        assert tuple(re.findall(r'"(.*?)"', constant("chosen_files.ts", name))) == patterns


def test_page_has_the_limits_of_archives() -> None:
    assert number("chosen_files.ts", "FILE_BYTES_MAX") == FILE_BYTES_MAX
    assert number("chosen_files.ts", "FILES_MAX") == FILES_MAX
    assert number("upload_code.ts", "THROUGH_API_BYTES_MAX") == SENT_BYTES_MAX


def test_page_asks_for_as_many_trials_and_ranks_as_the_server_accepts() -> None:
    assert number("trial_list.ts", "TRIALS_MAX", LOGS) == TRIALS_MAX
    assert number("log_rows.ts", "COLUMNS_MAX", LOGS) <= RANKS_MAX
