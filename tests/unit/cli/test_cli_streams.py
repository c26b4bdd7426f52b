"""Output to closed descriptors, full devices and closed pipes; control characters."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.cli.conftest import Detcloud
from tests.unit.cli.test_cli_main import shell

FULL = Path("/dev/full")
LOST = "error: the output could not be written: No space left on device\n"
full_device = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
CONFIG = """\
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""


def run_redirected(redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command through `sh` with the given redirection and buffered output."""
    command = f'unset PYTHONUNBUFFERED; "$@" {redirection}'
    return subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-m", "detcloud.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROCESS_SECONDS_MAX,
    )


@pytest.mark.parametrize(("redirection", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0)])
def test_closed_output_acts_like_dev_null(redirection: str, code: int) -> None:
    done = run_redirected(redirection, "list", "--help")
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "internal" not in done.stderr
    assert run_redirected(redirection, "bogus").returncode == 2


@full_device
@pytest.mark.parametrize("words", [("--help",), ("list", "--help"), ("completion", "bash")])
def test_help_on_a_full_device_is_an_error(words: tuple[str, ...]) -> None:
    done = run_redirected(f">{FULL}", *words)
    assert (done.returncode, done.stderr) == (1, LOST)


@full_device
def test_config_check_on_a_full_device_is_an_error(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    done = run_redirected(f">{FULL}", "config", "check", "--json", str(config))
    assert (done.returncode, done.stderr) == (1, LOST)
    assert run_redirected("| true", "config", "check", "--json", str(config)).stderr == ""
    assert shell("config", "check", str(config)).stdout.startswith("name:")


def test_unknown_words_cannot_steer_the_terminal(detcloud: Detcloud) -> None:
    for words in (["list", "\x1b[2J\u202e"], ["\x1b[2J\u202e"], ["pause", "\x1b[2J"]):
        code, _, err = detcloud(*words)
        assert code == 2
        assert "\x1b" not in err
        assert "\u202e" not in err
