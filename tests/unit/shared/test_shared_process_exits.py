import pytest

from detcloud.shared.process_exits import exit_text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "ended with exit code 3"),
        (-6, "was ended by SIGABRT"),
        (-9, "was ended by SIGKILL (out of memory?)"),
        # A shell reports signal 15 as 128 + 15.
        (143, "ended with exit code 143, that is SIGTERM"),
        # sys.exit(-1) is 255, and 255 - 128 is no signal.
        (255, "ended with exit code 255"),
        (-127, "was ended by signal 127"),
    ],
)
def test_exit_text_names_exit_code_or_signal(code: int, text: str) -> None:
    assert exit_text(code) == text
