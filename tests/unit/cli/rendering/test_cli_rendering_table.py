"""Tables as text and CSV, cut lines, colours, and texts of cells."""

import csv
import io
import json

import pytest

from detcloud.cli.rendering.columns import (
    CHECKPOINT_COLUMNS,
    EXPERIMENT_COLUMNS,
    TRIAL_COLUMNS,
    TRIAL_DETAILS,
    hparams_text,
)
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import (
    cell_text,
    field_column,
    render_csv,
    render_table,
    time_text,
)
from detcloud.cli.rendering.terminal import has_colour, progress_bar, sanitize, truncate
from detcloud.shared.plurals import count_text

COLUMNS = (field_column("ID", "id"), field_column("Name", "name"), field_column("State", "state"))
ITEMS = [
    {"id": 7, "name": "a", "state": "COMPLETED"},
    {"id": 12, "name": "a long name, with commas", "state": None},
]


def test_csv_keeps_digits_and_types_of_hyperparameters() -> None:
    values = [0.417022004702574, 1000.5, 1, 1.0, "1", True, None, [1, 2.5], 2**63 - 1, 1e-300]
    hparams = {f"h{place}": value for place, value in enumerate(values)}
    hparams |= {"model.layers": 2, "model": {"layers": 3}}
    for columns in (TRIAL_COLUMNS, TRIAL_DETAILS):
        written = render_csv(columns, [{"state": "COMPLETED", "hparams": hparams}])
        [row] = csv.DictReader(io.StringIO(written))
        parsed = json.loads(row["Hyperparameters"])
        assert parsed == hparams
        # Python's 1, 1.0 and True are equal.
        assert [type(parsed[name]) for name in hparams] == [type(item) for item in hparams.values()]


def test_csv_contains_sizes_in_bytes() -> None:
    [checkpoint] = csv.DictReader(
        io.StringIO(render_csv(CHECKPOINT_COLUMNS, [{"size_bytes": 12_345_678}]))
    )
    assert checkpoint["Size"] == "12345678"


def test_table_shows_paths_of_nested_names_and_of_names_with_dots() -> None:
    trial = {"hparams": {"model.layers": 2, "model": {"layers": 3}, "lr": 0.417022004702574}}
    assert hparams_text(trial) == '"model.layers"=2 model.layers=3 lr=0.417'


def test_numbers_are_right_aligned_and_missing_values_are_na() -> None:
    assert render_table(COLUMNS, ITEMS, None).splitlines() == [
        " ID | Name                     | State",
        "----+--------------------------+-----------",
        "  7 | a                        | COMPLETED",
        " 12 | a long name, with commas | N/A",
    ]


def test_the_widest_column_is_cut_to_fit() -> None:
    # 2 + 24 + 9 characters and 3 columns * 3 - 1 = 43; to fit 30, the name loses 13.
    lines = render_table(COLUMNS, ITEMS, 30).splitlines()
    assert lines[3] == " 12 | a long nam… | N/A"
    assert max(map(len, lines)) == 30


def test_narrow_terminal_keeps_all_columns() -> None:
    # 2 + 8 + 8 characters and 8 for the bars: columns stop at 8.
    assert max(map(len, render_table(COLUMNS, ITEMS, 5).splitlines())) == 26


def test_an_empty_list_prints_titles() -> None:
    assert render_table(COLUMNS, [], 80).splitlines()[0] == " ID | Name | State"


def test_csv_quotes_commas_and_escapes_formulas() -> None:
    items = [*ITEMS, {"id": -1, "name": "-cmd", "state": "@x"}]
    assert render_csv(COLUMNS, items).splitlines() == [
        "ID,Name,State",
        "7,a,COMPLETED",
        '12,"a long name, with commas",N/A',
        "-1,'-cmd,'@x",
    ]


def test_states_are_coloured_without_moving_columns() -> None:
    plain = render_table(COLUMNS, ITEMS, None).splitlines()
    coloured = render_table(COLUMNS, ITEMS, None, colour=True).splitlines()
    assert coloured[2] == plain[2].replace("COMPLETED", "\x1b[32mCOMPLETED\x1b[0m")


def test_cells_are_short_texts() -> None:
    assert cell_text(None) == cell_text("") == "N/A"
    assert cell_text(0.1 + 0.2) == "0.3"
    assert cell_text(0) == "0"
    assert cell_text({"a": 1}) == '{"a": 1}'
    assert time_text(None) is None
    assert time_text(1_000_000_000_999) == "2001-09-09 01:46:40+0000"


def test_formats_progress_bars_and_sizes() -> None:
    assert progress_bar(0.25, 8) == "[##------]"
    assert progress_bar(-1.0, 2) == "[--]"
    assert progress_bar(7.0, 2) == "[##]"
    assert [bytes_text(size) for size in (0, 1023, 1536, 2**30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1.0 GiB",
    ]


def test_control_characters_are_replaced() -> None:
    assert sanitize("a\x1b]0;x\x07b\u202ec") == "a�]0;x�b�c"
    assert sanitize("日本 ünï") == "日本 ünï"


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("no_color", "term", "expected"),
    [("", "xterm", True), ("1", "xterm", False), ("", "dumb", False)],
)
def test_colour_requires_a_terminal_and_permission(
    no_color: str, term: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    assert has_colour(Screen()) is expected
    assert not has_colour(io.StringIO())


def test_line_breaks_of_a_message_become_spaces() -> None:
    assert sanitize("first\n\tsecond") == "first  second"


def test_wide_characters_take_two_cells() -> None:
    items = [
        {"id": 1, "name": "日本", "state": "x"},
        {"id": 2, "name": "e\u0301tude", "state": "y"},
    ]
    # 日本 takes 4 cells. A combining accent takes 0 cells, so étude takes 5.
    assert render_table(COLUMNS, items, None).splitlines()[2:] == [
        "  1 | 日本  | x",
        "  2 | e\u0301tude | y",
    ]
    assert truncate("日本語", 4) == "日…"
    assert truncate("日本語", 6) == "日本語"


def test_optional_columns_are_dropped_before_text_is_cut() -> None:
    columns = (
        field_column("ID", "id"),
        field_column("Name", "name", drop_rank=1),
        field_column("State", "state"),
        field_column("Pool", "pool", drop_rank=2),
    )
    items = [{"id": 1, "name": "digits", "state": "COMPLETED", "pool": "default"}]
    # 2 + 6 + 9 + 7 characters and 4 * 3 - 1 = 35; without the pool 25, without the name 16.
    titles = [render_table(columns, items, width).splitlines()[0] for width in (35, 34, 24, 5)]
    assert titles == [
        " ID | Name   | State     | Pool",
        " ID | Name   | State",
        " ID | State",
        " ID | State",
    ]


def test_counts_use_singular_and_plural() -> None:
    assert [count_text(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


@pytest.mark.parametrize(
    ("state", "progress", "expected"),
    [
        ("COMPLETED", None, "100%"),
        ("COMPLETED", 1.0, "100%"),
        ("CANCELED", None, "N/A"),
        ("ACTIVE", 0.25, "25%"),
    ],
)
def test_progress_of_a_completed_experiment_is_100_percent(
    state: str, progress: float | None, expected: str
) -> None:
    columns = [column for column in EXPERIMENT_COLUMNS if column.title == "Progress"]
    table = render_table(columns, [{"state": state, "progress": progress}], None)
    assert table.splitlines()[-1].strip() == expected
