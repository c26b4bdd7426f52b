import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.core.trial_files import make_trial

WATCH = """
import sys, threading, time
from detcloud.core.thread_watch import watch_threads
watch_threads({seconds})
"""
ENDLESS = """
def upload_for_ever():
    while True:
        time.sleep(0.01)
threading.Thread(target=upload_for_ever, name="uploader").start()
file = open({path!r}, "w")
file.write("kept")
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_SECONDS_MAX)


def test_endless_thread_is_named_and_its_process_ended(tmp_path: Path) -> None:
    path = tmp_path / "file"
    done = run(WATCH.format(seconds=1) + ENDLESS.format(path=str(path)))
    assert done.returncode == 0
    first, last = done.stderr.splitlines()
    assert "waits for thread 'uploader' in upload_for_ever (<string>:" in first
    assert "exit_timeout" in first
    assert last == "[detcloud] 1 s after its end the process is ended"
    assert path.read_text() == "kept"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise ValueError('lost')", 1),
        ("from detcloud.launch.fast_exit import exit_process\nexit_process(7)", 7),
    ],
)
def test_ended_process_keeps_its_exit_code(tmp_path: Path, end: str, code: int) -> None:
    program = WATCH.format(seconds=0.5) + ENDLESS.format(path=str(tmp_path / "file"))
    assert run(program + end).returncode == code


@pytest.mark.parametrize("thread", ["daemon=True, target=time.sleep, args=(600,)", "target=print"])
def test_process_without_endless_threads_ends_normally(thread: str) -> None:
    # The limit is far beyond the process's own time limit.
    done = run(WATCH.format(seconds=10_000) + f"threading.Thread({thread}).start()\nsys.exit(3)")
    assert (done.returncode, done.stderr) == (3, "")


def test_unclosed_context_does_not_block_the_exit(tmp_path: Path) -> None:
    program = """
from detcloud import core
entered = core.init()
entered.__enter__()
raise SystemExit(3)
"""
    trial = make_trial(tmp_path / "run", entrypoint=[sys.executable, "-c", program])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "DETCLOUD_TRIAL_DIR": str(trial)},
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 3


FAILING_RELEASE = """
class Uploader:
    def close(self):
        raise OSError("No space left on device")

def train():
    with core.init() as context:
        context.train.uploader = Uploader()

try:
    train()
except OSError:
    pass
"""


@pytest.mark.parametrize("training", ["with core.init():\n    pass\n", FAILING_RELEASE])
def test_configured_exit_timeout_ends_endless_threads(tmp_path: Path, training: str) -> None:
    program = f"""
import threading, time
from detcloud import core
{training}
{ENDLESS.format(path=str(tmp_path / "file"))}"""
    trial = make_trial(tmp_path / "run", config={"exit_timeout": 1})
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "DETCLOUD_TRIAL_DIR": str(trial)},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert done.returncode == 0
    assert "1 s after its end the process is ended" in done.stderr
