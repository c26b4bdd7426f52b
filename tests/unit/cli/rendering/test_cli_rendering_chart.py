"""Charts: positions of dots and ticks, colours, and values that are no numbers."""

import math
import sys
from pathlib import Path

import pytest

from detcloud import DetcloudError
from detcloud.cli.rendering.chart import ROWS, Curve, Style, render_chart, round_numbers
from detcloud.cli.rendering.chart_image import write_png
from tests.conftest import require

RISING = Curve("rising", [(0, 0.0), (100, 1.0)])
FALLING = Curve("falling", [(0, 1.0), (100, 0.0)])


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        # (10 - 0) / 5 = 2 is a round number.
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        # (1 - 0) / 4 = 0.25 grows to 0.5.
        (0, 1, 4, [0, 0.5, 1]),
        # (730 - 20) / 3 = 237 grows to 500: a single multiple lies within.
        (20, 730, 3, [500]),
        # 0.03 / 3 = 0.01, from -0.01 on.
        (-0.01, 0.02, 3, [-0.01, 0, 0.01, 0.02]),
    ],
)
def test_ticks_are_round_numbers(
    low: float, high: float, count: int, expected: list[float]
) -> None:
    assert round_numbers(low, high, count) == pytest.approx(expected)


def test_a_line_rises_from_corner_to_corner() -> None:
    title, *rows = render_chart("accuracy", [RISING], Style(width=45)).splitlines()
    # Labels take 3 cells and the axis 2; of 45 columns 3 + 3 are not the plot's: 39 are.
    assert title == "     accuracy"
    assert rows[0].startswith("1.0 ┤")
    assert rows[ROWS - 1].startswith("0.0 ┤⣀") or rows[ROWS - 1].startswith("0.0 ┤⡠")
    assert len(rows[0]) == 5 + 39
    assert rows[0].rstrip()[-1] not in " ┤"
    assert rows[ROWS] == f"    └{'┬' + '─' * 18 + '┬' + '─' * 18 + '┬'}"
    assert rows[ROWS + 1].split() == ["0", "50", "100"]
    assert len(rows) == ROWS + 2


def test_curves_without_colours_are_letters_with_a_legend() -> None:
    rows = render_chart("x", [RISING, FALLING], Style(width=50)).splitlines()
    assert rows[-1] == "  a rising  b falling"
    assert rows[1].count("b") >= 1
    assert rows[1].rstrip().endswith("a")
    assert "\x1b" not in "".join(rows)


def test_curves_with_colours_are_coloured_dots() -> None:
    text = render_chart("x", [RISING, FALLING], Style(width=50, colour=True))
    assert "\x1b[36m" in text
    assert "\x1b[33m──\x1b[0m falling" in text


def test_a_terminal_without_unicode_gets_ascii() -> None:
    assert render_chart("x", [RISING], Style(unicode=False)).isascii()


def test_chart_lines_fit_the_width() -> None:
    long = Curve("l" * 300, RISING.points)
    for width in (50, 80, 133):
        for curves in ([RISING], [RISING, long]):
            rows = render_chart("t" * 300, curves, Style(width=width)).splitlines()
            assert max(map(len, rows)) <= width


def test_a_constant_curve_gets_a_range_around_its_value() -> None:
    rows = render_chart("x", [Curve("one", [(5, 0.5)])], Style()).splitlines()
    # 0.5 - 0.05 to 0.5 + 0.05; 0.1 / 5 = 0.02 is the step.
    labels = [row.split("┤")[0].strip() for row in rows if "┤" in row]
    assert labels == ["0.54", "0.52", "0.50", "0.48", "0.46"]
    assert "no numbers" not in render_chart("x", [Curve("same", [(0, 0.0), (9, 0.0)])], Style())


def test_nan_and_infinity_are_not_drawn() -> None:
    nothing = Curve("bad", [(0, math.nan), (1, math.inf)])
    assert render_chart("loss", [nothing], Style()) == "loss: no numbers to draw"
    assert render_chart("loss", [], Style()) == "loss: no numbers to draw"
    assert render_chart("x", [RISING, nothing], Style()) == render_chart("x", [RISING], Style())


def test_a_logarithmic_scale_names_powers_of_ten() -> None:
    curve = Curve("loss", [(0, 100.0), (50, 0.0), (100, 0.001)])
    rows = render_chart("loss", [curve], Style(log_y=True)).splitlines()
    labels = [row.split("┤")[0].strip() for row in rows if "┤" in row]
    assert labels == ["100", "10", "1", "0.1", "0.01", "0.001"]
    narrow = render_chart("loss", [Curve("loss", [(0, 2.0), (1, 5.0)])], Style(log_y=True))
    assert "5" in narrow.splitlines()[1]


def test_large_and_small_numbers_have_short_labels() -> None:
    rows = render_chart("x", [Curve("x", [(0, 1e-9), (6e9, 3e-9)])], Style()).splitlines()
    assert rows[1].startswith("3.0e-09 ┤")
    assert rows[-1].split() == ["0.0e+00", "2.0e+09", "4.0e+09", "6.0e+09"]


def test_hostile_names_stay_text() -> None:
    text = render_chart("a\x1b[2J", [RISING, Curve("b\x1b]0;x\x07", FALLING.points)], Style())
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_picture_without_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DetcloudError, match=r"pip install 'detcloud\[plot\]'"):
        write_png(tmp_path / "x.png", [("x", [RISING])], log_y=False)


def test_a_picture_is_a_png(tmp_path: Path) -> None:
    require("matplotlib")
    path = tmp_path / "x.png"
    write_png(path, [("loss", [RISING, FALLING]), ("other", [RISING])], log_y=False)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
