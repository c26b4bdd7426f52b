import io

from detcloud.cli.rendering.terminal import sanitize_output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_trial_output_may_only_colour_the_terminal() -> None:
    red, clipboard, title = "\x1b[1;31mred\x1b[0m", "\x1b]52;c;cm0gLXJm\x07", "\x1b]0;mine\x1b\\"
    text = f"{red}\t10%\r{clipboard}{title}\x1b[2J\x9b2J\u202eend"
    shown = sanitize_output(text, Terminal())
    assert shown.startswith(f"{red}\t10%\r\ufffd]52;c;")
    left = shown.replace("\x1b[1;31m", "").replace("\x1b[0m", "")
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(left)


def test_a_file_gets_trial_output_unchanged() -> None:
    text = "\x1b]52;c;cm0gLXJm\x07\x00"
    assert sanitize_output(text, io.StringIO()) == text
