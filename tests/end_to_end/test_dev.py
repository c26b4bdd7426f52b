"""`detcloud dev` on one machine: a program changes the folder through a tunnel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.agents import Agents
from tests.end_to_end.laptop import Laptop
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

# The lease of 30 s and a pass of the loss detection.
LOST_SECONDS_MAX = 60.0
# The strike of a machine leaves the program, which therefore ends with its parent.
RESTARTED = """
test -e made && exit 7
echo theirs > made
while kill -0 $PPID 2> /dev/null; do sleep 0.1; done
"""
PROGRAM = "cat mine; echo theirs > made; rm deleted; exit 3"


def test_folder_is_the_same_here_and_on_the_machine(laptop: Laptop, tmp_path: Path) -> None:
    laptop.run("up")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "mine").write_text("from here\n")
    (folder / "deleted").write_text("from here\n")
    words = "dev", folder, "--slots", 0, "--", "sh", "-c", PROGRAM
    done = laptop.run(*words, code=3)
    assert done.stdout == "from here\n"
    assert sorted(path.name for path in folder.iterdir()) == ["made", "mine"]
    assert (folder / "made").read_text() == "theirs\n"
    # The user's deleted file is kept.
    [kept] = (laptop.home / "dev" / "replaced").rglob("deleted")
    assert kept.read_text() == "from here\n"
    assert laptop.run("shell", "list", "--quiet", "--state", "running").stdout == ""
    laptop.run("dev", folder, "--slots", 0, "--keep", "--", "true")
    [shell] = laptop.run("shell", "list", "--quiet", "--state", "running").stdout.split()
    (folder / "made").unlink()
    (folder / "new").write_text("2\n")
    # The stored common contents show that the file was deleted here.
    done = laptop.run("dev", folder, "--attach", shell, "--", "ls")
    assert done.stdout == "mine\nnew\n"
    assert laptop.run("shell", "list", "--quiet", "--state", "running").stdout == ""


@pytest.mark.nightly
def test_work_continues_on_another_machine_after_a_loss(laptop: Laptop, tmp_path: Path) -> None:
    laptop.run("up", "--slots", 1)
    folder = tmp_path / "work"
    folder.mkdir()
    agents = Agents(laptop)
    try:
        # The server's own agent has too few slots.
        agents.start("first", 2)
        words = "dev", folder, "--slots", 2, "--rerun", "--", "sh", "-c", RESTARTED
        work = laptop.spawn(*words)
        wait_until((folder / "made").exists, PROCESS_SECONDS_MAX)
        # Three agents, so that a silent agent does not look like the server's own outage.
        agents.start("second", 2)
        wait_until(lambda: agents.alive() == {"local", "first", "second"})
        agents.strike("first")
        output, _ = work.communicate(timeout=LOST_SECONDS_MAX + PROCESS_SECONDS_MAX)
        assert work.returncode == 7, output
        assert "was lost" in output
    finally:
        agents.end()
