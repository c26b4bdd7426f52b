"""Logs on a terminal and in a pipe: unfinished lines, interleaved logs, colours."""

import contextlib
import io

import pytest

from detcloud.cli.rendering.log_screen import LogScreen, LogSource, colour_after


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class BrokenPipe(io.StringIO):
    def write(self, text: str) -> int:
        super().write(text)
        raise BrokenPipeError


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@pytest.fixture
def pipe() -> io.StringIO:
    return io.StringIO()


@pytest.mark.parametrize(
    ("text", "active"),
    [
        ("plain", ""),
        ("\x1b[31mred", "\x1b[31m"),
        ("\x1b[31mred\x1b[0m", ""),
        ("\x1b[31mred\x1b[m", ""),
        ("\x1b[31m\x1b[1mbold", "\x1b[31m\x1b[1m"),
        ("\x1b[31m\x1b[0;1mbold", "\x1b[0;1m"),
        ("\x1b[1;0mplain", ""),
        ("\x1b[39mplain", ""),
        # The 0 is the number of a colour, not a reset.
        ("\x1b[38;5;0mblack", "\x1b[38;5;0m"),
        ("\x1b[48;2;0;0;0mblack", "\x1b[48;2;0;0;0m"),
        ("\x1b[2Kno colour", ""),
    ],
)
def test_colours_in_effect_after_a_text(text: str, active: str) -> None:
    assert colour_after(text) == active


def test_number_of_active_colour_codes_is_limited() -> None:
    assert colour_after("\x1b[31m" * 1000) == "\x1b[31m" * 16


def test_colours_are_reset_after_each_piece(terminal: Terminal) -> None:
    source = LogSource()
    with LogScreen(terminal) as screen:
        screen.write(source, "a\x1b[31mred")
        assert terminal.getvalue() == "a\x1b[31mred\x1b[0m"
        screen.write(source, " still\n")
        # The next piece begins with the colour of the previous piece.
        assert terminal.getvalue() == "a\x1b[31mred\x1b[0m\x1b[31m still\n\x1b[0m"
        screen.write(source, "\x1b[0mplain\n")
        assert terminal.getvalue().endswith("\x1b[31m\x1b[0mplain\n")


def test_lines_of_other_logs_have_no_colour(terminal: Terminal) -> None:
    red, plain = LogSource("[1] "), LogSource("[2] ")
    with LogScreen(terminal) as screen:
        screen.write(red, "\x1b[31mred\n")
        screen.write(plain, "plain\n")
        screen.write(red, "red again\n")
    assert terminal.getvalue() == (
        "[1] \x1b[31mred\n\x1b[0m[2] plain\n[1] \x1b[31mred again\n\x1b[0m"
    )


def test_a_colour_code_split_across_pieces_is_joined(terminal: Terminal) -> None:
    source = LogSource()
    with LogScreen(terminal) as screen:
        screen.write(source, "a\x1b[3")
        assert terminal.getvalue() == "a"
        screen.write(source, "1mred\n")
        assert terminal.getvalue() == "a\x1b[31mred\n\x1b[0m"
        screen.write(source, "end\x1b[")
        screen.finish(source)
    # Escape sequences other than colours are replaced.
    assert terminal.getvalue().endswith("\x1b[31mend\x1b[0m\x1b[31m�[\x1b[0m\n")


def test_a_progress_bar_is_shown_immediately(terminal: Terminal) -> None:
    source = LogSource()
    with LogScreen(terminal) as screen:
        screen.write(source, "\r 10%")
        assert terminal.getvalue() == "\r 10%"
        screen.write(source, "\r 20%")
        assert terminal.getvalue() == "\r 10%\r 20%"
        screen.finish(source)
    assert terminal.getvalue() == "\r 10%\r 20%\n"


def test_a_bar_does_not_overwrite_the_name_of_its_trial(terminal: Terminal) -> None:
    bar = LogSource("[7] ")
    with LogScreen(terminal) as screen:
        screen.write(bar, "\r 10%\r 20%\r")
        screen.write(bar, " 30%\r\nend\n")
    assert terminal.getvalue() == "[7] \r[7]  10%\r[7]  20%\r[7]  30%\r\n[7] end\n"


def test_a_second_log_starts_a_new_line(pipe: io.StringIO) -> None:
    bar, other = LogSource("[1] "), LogSource("[2] ")
    with LogScreen(pipe) as screen:
        screen.write(bar, "10%\r20%")
        screen.write(other, "hello\n")
        screen.write(bar, "\r30%\n")
    assert pipe.getvalue() == "[1] 10%\r20%\n[2] hello\n[1] \r30%\n"


def test_a_pipe_gets_the_text_unchanged(pipe: io.StringIO) -> None:
    source = LogSource()
    with LogScreen(pipe) as screen:
        screen.write(source, "\x1b[31mred\x1b[2J\r1%\x1b[3")
        screen.write(source, "2mgreen\n")
        screen.finish(source)
    assert pipe.getvalue() == "\x1b[31mred\x1b[2J\r1%\x1b[32mgreen\n"


def test_lines_end_their_own_colours(terminal: Terminal) -> None:
    with LogScreen(terminal) as screen:
        screen.print_line("\x1b[31mred")
        screen.print_line("plain")
    assert terminal.getvalue() == "\x1b[31mred\x1b[0m\nplain\n"


def test_the_terminal_behind_a_broken_pipe_loses_its_colours(terminal: Terminal) -> None:
    with pytest.raises(BrokenPipeError), LogScreen(BrokenPipe(), terminal) as screen:
        screen.write(LogSource(), "\x1b[31mred\n")
    assert terminal.getvalue() == "\x1b[0m"


def test_ctrl_c_ends_an_open_line(terminal: Terminal) -> None:
    with contextlib.suppress(KeyboardInterrupt), LogScreen(terminal) as screen:
        screen.write(LogSource(), "\x1b[31m10%")
        raise KeyboardInterrupt
    assert terminal.getvalue() == "\x1b[31m10%\x1b[0m\n"
