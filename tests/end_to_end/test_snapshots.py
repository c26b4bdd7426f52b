"""The files of a shell outlive its machine: saved at a notice and at a kill, and restored."""

from __future__ import annotations

import json
import os
import signal
import tarfile
import time
from pathlib import Path

import pytest

from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

NO_SLOTS = ("--config", "resources.slots=0")
WRITE = "mkdir -p src/empty && printf typed > src/notes && ln -s src/notes latest && chmod 750 src"
SHOW = "cat latest; ls -A . src; stat -c %a src"
SHOWN = "typed.:\nlatest\nsrc\n\nsrc:\nempty\nnotes\n750\n"


def start_shell(laptop: Laptop, *words: object) -> int:
    return int(laptop.run("shell", "start", "--detach", *NO_SLOTS, *words).stdout)


def run_in(laptop: Laptop, shell: int, line: str) -> str:
    return laptop.run("shell", "open", shell, "sh", "-c", line).stdout


def saved_ms(laptop: Laptop, shell: int) -> int:
    """Return the time of the last snapshot, 0 without one."""
    [run] = [one for one in laptop.json("shell", "list") if one["id"] == shell]
    snapshot = run["run"] and run["run"]["snapshot"]
    return int(snapshot["saved_ms"]) if snapshot else 0


def announce_end(laptop: Laptop) -> Path:
    """Write a notice of the machine's end in ten minutes, and return the file."""
    notice = laptop.home / "agent" / "preemption-notice.json"
    deadline_ms = time.time_ns() // 1_000_000 + 600_000
    notice.write_text(json.dumps({"deadline_ms": deadline_ms, "reason": "spot interruption"}))
    return notice


def test_files_of_a_lost_machine_are_restored(laptop: Laptop) -> None:
    laptop.run("up")
    shell = start_shell(laptop)
    run_in(laptop, shell, WRITE)
    assert saved_ms(laptop, shell) == 0
    notice = announce_end(laptop)
    wait_until(lambda: saved_ms(laptop, shell))
    [running] = laptop.running()
    for process in (running.supervisor, running.leader):
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: laptop.json("describe", shell)["state"] == "ERROR")
    advice = f"start it again with its files: detcloud shell start --from {shell}"
    assert laptop.json("describe", shell)["message"].endswith(advice)
    # A machine whose end was announced gets no further work until it is enabled.
    notice.unlink()
    laptop.run("agent", "enable", "local")
    restored = start_shell(laptop, "--from", shell)
    assert run_in(laptop, restored, SHOW) == SHOWN
    # A change is saved when the shell is killed.
    run_in(laptop, restored, "printf ' again' >> src/notes")
    laptop.run("shell", "kill", restored)
    wait_until(lambda: laptop.json("describe", restored)["state"] == "CANCELED")
    [snapshot] = laptop.json("checkpoint", "list", restored)
    folder = laptop.home / "fetched"
    laptop.run("checkpoint", "download", snapshot["uuid"], "-o", folder)
    with tarfile.open(folder / "folder.tar") as archive:
        notes = archive.extractfile("src/notes")
        assert notes is not None
        assert notes.read() == b"typed again"
