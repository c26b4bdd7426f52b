import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from detcloud.launch.stop_signals import find_catchers, find_listeners, send_sigterm
from detcloud.shared.processes import list_descendants, read_process
from tests.patience import PROCESS_SECONDS_MAX, wait_until

# Write a file named after the process id once the handler is installed.
CATCH = """
import os, pathlib, signal, subprocess, sys, time
def ready():
    pathlib.Path(sys.argv[1], str(os.getpid())).touch()
def catch():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ready()
def wait():
    while True:
        time.sleep(0.05)
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a command, and wait until `ready` processes are ready.

    PYTHON and FOLDER in the command stand for the interpreter and a folder.
    """
    (tmp_path / "ready").mkdir()
    started = []

    def start_command(command: str, ready: int = 1, **programs: str) -> subprocess.Popen[bytes]:
        for name, text in programs.items():
            (tmp_path / f"{name}.py").write_text(CATCH + text)
        environment = {**os.environ, "PYTHON": sys.executable, "FOLDER": str(tmp_path / "ready")}
        process = subprocess.Popen(
            ["sh", "-c", command], cwd=tmp_path, env=environment, start_new_session=True
        )
        started.append(process)
        wait_until(lambda: len(list((tmp_path / "ready").iterdir())) == ready)
        return process

    yield start_command
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PROCESS_SECONDS_MAX)


def commands(pids: list[int]) -> list[str]:
    processes = [read_process(pid) for pid in pids]
    return sorted(process.command.split()[1] for process in processes if process is not None)


def test_shells_above_a_program_get_no_signal(start: Start) -> None:
    shell = start("($PYTHON train.py $FOLDER; true); true", train="catch()\nwait()\n")
    assert commands(find_catchers(shell.pid)) == ["train.py"]


def test_forks_of_a_program_get_no_signal(start: Start) -> None:
    shell = start(
        "$PYTHON train.py $FOLDER; true",
        ready=3,
        train="catch()\nif os.fork() == 0 or os.fork() == 0:\n    ready(); wait()\nwait()\n",
    )
    (train,) = find_catchers(shell.pid)
    assert train in [process.pid for process in list_descendants(shell.pid)][:1]


def test_workers_of_a_program_without_handler_get_no_signal(start: Start) -> None:
    shell = start(
        "$PYTHON train.py $FOLDER; true",
        train="if os.fork() == 0:\n    catch(); wait()\nwait()\n",
    )
    assert find_catchers(shell.pid) == []


def test_program_below_a_program_without_handler_gets_the_signal(start: Start) -> None:
    shell = start(
        "$PYTHON outer.py $FOLDER; true",
        outer="subprocess.run([sys.executable, 'train.py', sys.argv[1]])\n",
        train="catch()\nwait()\n",
    )
    assert commands(find_catchers(shell.pid)) == ["train.py"]


def test_ranks_get_the_signal_in_place_of_their_launcher(start: Start) -> None:
    # On SIGTERM a launcher kills its ranks, and with them their workers.
    shell = start(
        "cp torchrun.py torchrun; $PYTHON torchrun $FOLDER; true",
        ready=3,
        torchrun="catch()\nranks = [subprocess.Popen([sys.executable, 'train.py', sys.argv[1]])"
        " for _ in range(2)]\nwait()\n",
        train="catch()\nwait()\n",
    )
    assert commands(find_catchers(shell.pid)) == ["train.py", "train.py"]


def claim(folder: Path, text: str, name: str = ".rank-0") -> None:
    (folder / "out").mkdir(exist_ok=True)
    (folder / "out" / name).write_text(text)


def test_listeners_are_living_processes_with_a_claim(tmp_path: Path) -> None:
    own = read_process(os.getpid())
    assert own is not None
    claim(tmp_path, f"{own.pid} {own.started_ticks}")
    claim(tmp_path, "", ".rank-1")
    assert find_listeners(str(tmp_path)) == [own.pid]
    # The process with this id started at another time than the claim says.
    claim(tmp_path, f"{own.pid} {own.started_ticks - 1}")
    assert find_listeners(str(tmp_path)) == []


@pytest.mark.parametrize(
    "text", ["1 0", "0 0", "-1 5", "x", "\u0662 5", "../self 1", " ", "9" * 99]
)
def test_claims_of_no_process_are_skipped(tmp_path: Path, text: str) -> None:
    claim(tmp_path, text)
    assert find_listeners(str(tmp_path)) == []


def test_hostile_claims_are_skipped(tmp_path: Path) -> None:
    claim(tmp_path, "")
    os.mkfifo(tmp_path / "out" / ".rank-1")
    (tmp_path / "out" / ".rank-2").mkdir()
    (tmp_path / "out" / ".rank-3").symlink_to("/dev/zero")
    assert find_listeners(str(tmp_path)) == []
    assert find_listeners(str(tmp_path / "missing")) == []


def test_signal_to_an_ended_process_is_harmless() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait(PROCESS_SECONDS_MAX)
    send_sigterm([ended.pid])
