"""Printing of several growing logs on one screen.

The text of a program is printed as soon as the cluster has received the text. Colours of a log do
not affect other logs.
"""

from __future__ import annotations

import contextlib
import re
import sys
from types import TracebackType
from typing import Self, TextIO

from detcloud.cli.rendering.terminal import sanitize_for_terminal

COLOUR_END = "\x1b[0m"
# A carriage return without a newline. At the end of a piece, the next character is unknown.
_OVERWRITING = re.compile("\r(?!\n|\\Z)")
_COLOUR = re.compile("\x1b\\[([0-9;:]*)m")
# The beginning of a colour at the end of a piece. A longer sequence is not a colour.
_CUT_COLOUR = re.compile("\x1b(\\[[0-9;:]{0,60})?\\Z")
# Arguments of a colour that is chosen from a table or by its parts: 38;5;N and 38;2;R;G;B.
_COLOUR_ARGUMENTS = {"5": 1, "2": 3}
_EXTENDED_COLOURS = ("38", "48", "58")
_RESETS = frozenset(["", "0", "00"])
# Sequences that are repeated after another log's text; a program that never resets has more.
_ACTIVE_MAX = 16
# Codes that only end an effect.
_ENDS_OF_EFFECTS = frozenset(
    ["22", "23", "24", "25", "27", "28", "29", "39", "49", "54", "55", "59"]
)


def colour_after(text: str, colour: str = "") -> str:
    """Return the escape sequences of colours in effect after a text, or "" without colours.

    A reset ends all colours. At most the last _ACTIVE_MAX sequences are returned.

    Args:
        text: a text with complete escape sequences.
        colour: the escape sequences in effect before the text.
    """
    if "\x1b" not in text:
        return colour
    active = _COLOUR.findall(colour)
    for parameters in _COLOUR.findall(text):
        codes = _codes(parameters)
        last_reset = max((n for n, code in enumerate(codes) if code in _RESETS), default=-1)
        if last_reset >= 0:
            active = []
        begins = any(code not in _ENDS_OF_EFFECTS for code in codes[last_reset + 1 :])
        if begins or (active and last_reset < len(codes) - 1):
            active.append(parameters)
    return "".join(f"\x1b[{parameters}m" for parameters in active[-_ACTIVE_MAX:])


def _codes(parameters: str) -> list[str]:
    """Return the codes of an escape sequence without the arguments of extended colours.

    Args:
        parameters: codes separated by semicolons, such as `1;38;5;9`, which gives 1 and 38. ""
            gives [""].
    """
    parts = parameters.split(";")
    codes = []
    place = 0
    while place < len(parts):
        codes.append(parts[place])
        if parts[place] in _EXTENDED_COLOURS and place + 1 < len(parts):
            place += 1 + _COLOUR_ARGUMENTS.get(parts[place + 1], 0)
        place += 1
    return codes


class LogSource:
    """The open line and the colours of a log that is printed in pieces. `prefix` stands before each
    line; "" for no prefix.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._cut_colour = ""
        self._colour = ""
        self._is_line_open = False
        self._ends_with_return = False

    @property
    def colour(self) -> str:
        """The escape sequences in effect at the end of the text printed so far."""
        return self._colour

    def render_plain(self, text: str, *, is_continued: bool) -> str:
        """Return the output for the next piece of the text in a file or a pipe.

        The text is unchanged, but each line begins with the prefix. The source's `colour` and the
        state of the open line are updated. An empty text gives "".

        Args:
            text: the next piece, which may end within a line.
            is_continued: whether the output ends with the previous piece of this log. An open line
                of this log then gets no second prefix.
        """
        self._colour = colour_after(text, self._colour)
        return "".join(self._add_prefixes(text, is_continued, is_terminal=False))

    def render_for_terminal(self, text: str, *, is_continued: bool, is_end: bool = False) -> str:
        """Return the output for the next piece of the text on a terminal, where each line begins
        with the prefix.

        Each piece ends without colours; the next piece begins with the colours that were in effect.
        Control characters are replaced by U+FFFD. The prefix is repeated after a carriage return,
        because the text would overwrite the prefix. An incomplete colour sequence at the end waits
        for the next piece. Return "" if nothing is left to print. The source's `colour` and the
        state of the open line are updated.

        Args:
            text: the next piece, which may end within a line.
            is_continued: whether the screen ends with the previous piece of this log.
            is_end: whether no more text follows, so that nothing waits.
        """
        text = self._cut_colour + text
        self._cut_colour = ""
        if not is_end and (cut := _CUT_COLOUR.search(text)):
            text, self._cut_colour = text[: cut.start()], text[cut.start() :]
        if not text:
            return ""
        text = sanitize_for_terminal(text)
        before, self._colour = self._colour, colour_after(text, self._colour)
        start, shown = self._add_prefixes(text, is_continued, is_terminal=True)
        return f"{start}{before}{shown}{COLOUR_END if self._colour else ''}"

    def _add_prefixes(self, text: str, is_continued: bool, *, is_terminal: bool) -> tuple[str, str]:
        """Return the prefix at the beginning of the text, and the text with all later prefixes.

        The first prefix is empty if the text continues a line. On a terminal, a line that ended
        with a carriage return gets the prefix again, unless a newline follows. Record whether the
        text ends with an open line or a carriage return. Without a prefix or text, return "" and
        the text unchanged.

        Args:
            is_continued: whether the output ends with the previous piece of this log.
            is_terminal: whether to repeat the prefix after carriage returns.
        """
        if not self.prefix or not text:
            return "", text
        is_new_line = not (self._is_line_open and is_continued)
        is_overwritten = is_terminal and self._ends_with_return and text[0] != "\n"
        self._is_line_open = not text.endswith("\n")
        self._ends_with_return = text.endswith("\r")
        body = text if self._is_line_open else text[:-1]
        if is_terminal:
            body = _OVERWRITING.sub(lambda _: f"\r{self.prefix}", body)
        body = body.replace("\n", f"\n{self.prefix}")
        start = self.prefix if is_new_line or is_overwritten else ""
        end = "" if self._is_line_open else "\n"
        return start, body + end


class LogScreen:
    """A screen that prints a single log or several growing logs, by default to standard output.

    An open line is ended before the text of another log, and on a terminal when the screen is
    closed. A file or a pipe gets the texts with prefixes, otherwise unchanged, with their colours.
    """

    def __init__(self, output: TextIO | None = None, errors: TextIO | None = None) -> None:
        self._output = output or sys.stdout
        self._errors = errors or sys.stderr
        self._is_terminal = self._output.isatty()
        self._open: LogSource | None = None
        self._colour = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """On a terminal, end the open line of a log without a flush.

        Otherwise, if colours are in effect and stderr is a terminal, flush the output and reset the
        colours on stderr. Errors of this flush are ignored. Exceptions of the block are not
        suppressed.
        """
        if self._is_terminal:
            self._end_line()
        elif self._colour and self._errors.isatty():
            # A pager passes colours on to the terminal.
            with contextlib.suppress(OSError):
                self._output.flush()
            self._errors.write(COLOUR_END)
            self._errors.flush()

    def write(self, source: LogSource, text: str) -> None:
        """Print the next piece of a log, and flush the output. The open line of another log is
        ended first. An empty text ends no line.
        """
        self._write(source, text)
        self._output.flush()

    def finish(self, source: LogSource) -> None:
        """Print the rest of a log, end the last line if the line is open, and flush the output. The
        rest is text that waited for the end of a colour sequence.

        In a file or a pipe, an open last line gets a newline too.
        """
        self._write(source, "", is_end=True)
        if self._open is source:
            self._end_line()
        self._output.flush()

    def print_line(self, text: str, *, flush: bool = False) -> None:
        """Print a line outside the open logs, after ending the open line of a log.

        On a terminal, colours of the line do not affect later lines. A file or a pipe gets the line
        unchanged.

        Args:
            text: the line without a line break. Control characters are not replaced.
            flush: whether to flush the output.
        """
        self._end_line()
        if self._is_terminal:
            end = COLOUR_END if colour_after(text) else ""
            self._output.write(f"{text}{end}\n")
        else:
            self._colour = colour_after(text, self._colour)
            self._output.write(f"{text}\n")
        if flush:
            self._output.flush()

    def _write(self, source: LogSource, text: str, *, is_end: bool = False) -> None:
        """Write the next piece of a log without a flush, after ending the open line of another log.
        Write nothing if nothing is to be shown, for example for an empty text.

        Args:
            is_end: whether no more text of this log follows.
        """
        is_continued = self._open is source
        if self._is_terminal:
            shown = source.render_for_terminal(text, is_continued=is_continued, is_end=is_end)
            ends_line = shown.removesuffix(COLOUR_END).endswith("\n")
        else:
            shown = source.render_plain(text, is_continued=is_continued)
            ends_line = shown.endswith("\n")
            self._colour = source.colour
        if not shown:
            return
        if not is_continued:
            self._end_line()
        self._open = None if ends_line else source
        self._output.write(shown)

    def _end_line(self) -> None:
        """Print a newline if the line of a log is open; no line is open afterwards."""
        if self._open is not None:
            self._open = None
            self._output.write("\n")
