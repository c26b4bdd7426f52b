"""The page docs/lab.md, tried from nothing: its code blocks run in order on bare machines.

The walk needs wheels of detcloud and of its dependencies. The machines have no systemd and no sudo;
tests/emulators/bare_machine_files has their substitutes.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT
from tests.emulators.bare_machine import BareMachine, Terminal, make_key
from tests.emulators.machine_network import MachineNetwork
from tests.patience import PATIENCE, wait_until

# The walk takes more than a minute, and downloads wheels.
pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

SERVER, LAPTOP, GPUS = "lab.example", "laptop", ("gpu-1", "gpu-2")
# The sections of a first cluster, in the order of the page, with the machine of their commands.
PLACES = {
    "Start the server": SERVER,
    "Sign in": LAPTOP,
    "Add machines": LAPTOP,
    "Choose a place for checkpoints": LAPTOP,
    "Run an experiment": LAPTOP,
}
WALK_SECONDS_MAX = 600.0
ADD_SECONDS_MAX = 20.0


class Block(NamedTuple):
    """A code block of the page."""

    section: str
    language: str
    text: str


class Walk:
    """An operator with a shell on each machine, who follows the page."""

    def __init__(self, machines: dict[str, BareMachine], cleanup: ExitStack) -> None:
        self._machines = machines
        self._cleanup = cleanup
        self.first_start = ""
        self.outputs: list[tuple[str, str, float]] = []
        """Each command with its output and its seconds."""
        self._is_activated = False

    def follow(self, block: Block) -> None:
        """Save the file of a block, or run the commands of a block."""
        if block.language != "sh":
            name = block.text.partition("\n")[0].removeprefix("# ")
            self.run(f"printf %s {shlex.quote(block.text)} > {name}", LAPTOP)
            return
        for line in block.text.splitlines():
            self._follow_line(line, PLACES[block.section])

    def run(self, command: str, place: str) -> str:
        """Run a command, and return the output."""
        activated = ". ~/detcloud/bin/activate; " * (self._is_activated and place == LAPTOP)
        began = time.monotonic()
        output = self._machines[place].run(activated + command)
        self.outputs.append((command, output, time.monotonic() - began))
        return output

    def output_of(self, start: str) -> str:
        """Return the output of the only command that begins with `start`."""
        [output] = [text for command, text, _seconds in self.outputs if command.startswith(start)]
        return output

    def seconds_of(self, start: str) -> float:
        """Return the duration of the only command that begins with `start`."""
        [seconds] = [spent for command, _text, spent in self.outputs if command.startswith(start)]
        return seconds

    def _follow_line(self, line: str, place: str) -> None:
        if " server run " in line:
            self._start_first_server(line)
        elif line.startswith("ssh "):
            self._accept_host_key(line)
        elif line.startswith(". "):
            self._is_activated = True
        elif line.startswith("sudo chown "):
            self.run(line, SERVER)
        else:
            self.run(self._with_code(line), place)

    def _with_code(self, line: str) -> str:
        """Replace the page's DIGEST and CODE by the values that the server printed."""
        if "DIGEST" not in line:
            return line
        found = re.search(r"--pin sha256:(\S+) --code (\S+)", self.first_start)
        assert found is not None, self.first_start
        return line.replace("DIGEST", found[1]).replace("CODE", found[2])

    def _start_first_server(self, line: str) -> None:
        """Start the server on a terminal, read the lines of the sign-in, and press Ctrl-C."""
        terminal = self._terminal(SERVER, line)
        wait_until(lambda: "detcloud agent add" in terminal.output(), what="the first start")
        self.first_start = terminal.output()
        assert terminal.interrupt() == 0, terminal.output()

    def _accept_host_key(self, line: str) -> None:
        """Connect with a machine, and answer OpenSSH's question about the key with yes."""
        terminal = self._terminal(LAPTOP, line)
        wait_until(lambda: "(yes/no" in terminal.output(), what="the question about the key")
        terminal.type("yes\n")
        wait_until(lambda: not terminal.is_running(), what="the end of ssh")

    def _terminal(self, place: str, command: str) -> Terminal:
        terminal = self._machines[place].start_on_terminal(command)
        self._cleanup.callback(terminal.close)
        return terminal


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    [built] = folder.glob("detcloud-*.whl")
    needed = [f"{built}[server]", "-d", str(folder), "--find-links", str(folder)]
    subprocess.run([*pip, "download", *needed], check=True)
    return folder


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def machines(cleanup: ExitStack, wheels: Path, tmp_path: Path) -> dict[str, BareMachine]:
    make_key(tmp_path / "key")
    shared = tmp_path / "shared"
    shared.mkdir()
    network = MachineNetwork(cleanup)
    made = {}
    for name in (SERVER, LAPTOP, *GPUS):
        network.add(name)
        machine = BareMachine(network, name, tmp_path / name, tmp_path / "key", wheels, shared)
        cleanup.callback(machine.close)
        made[name] = machine
    for machine in made.values():
        machine.learn_hosts({name: network.address_of(name) for name in made})
    return made


def page_blocks() -> list[Block]:
    """Return the code blocks of the sections of PLACES, and check the order of the sections."""
    text = (ROOT / "docs/lab.md").read_text(encoding="utf-8")
    sections = [part.split("\n", 1) for part in re.split(r"^## ", text, flags=re.M)[1:]]
    assert [title for title, _body in sections[: len(PLACES)]] == list(PLACES)
    return [
        Block(title, language, code)
        for title, body in sections[: len(PLACES)]
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", body, flags=re.M | re.S)
    ]


def inline_command(start: str) -> str:
    """Return the only inline command of the page that begins with `start`."""
    text = (ROOT / "docs/lab.md").read_text(encoding="utf-8")
    [command] = re.findall(rf"`({start}[^`]*)`", text)
    return str(command)


def test_page_leads_from_bare_machines_to_trials_on_all_machines(
    machines: dict[str, BareMachine], cleanup: ExitStack, tmp_path: Path
) -> None:
    before = {name: machines[name].listing() for name in GPUS}
    began = time.monotonic()
    walk = Walk(machines, cleanup)
    for block in page_blocks():
        walk.follow(block)
    spent = time.monotonic() - began

    # The pin of the first start is the pin of the service.
    pin = re.search(r"^certificate: (sha256:\S+)$", walk.first_start, flags=re.M)
    status = walk.output_of("sudo /opt/detcloud-server/bin/detcloud server status")
    assert pin is not None
    assert pin[1] in status
    assert "https://lab.example:8470 is ready" in status
    for name in GPUS:
        assert re.search(
            rf"^agent {name} on ssh://root@{name} has [1-9]\d* slots?",
            walk.output_of("detcloud agent add"),
            flags=re.M,
        )
        assert re.search(rf"{name} .* ALIVE ", walk.output_of("detcloud agent list"))

    assert "experiment 1 finished" in walk.output_of("detcloud create")
    logs = [walk.run(f"detcloud trial logs {number}", LAPTOP) for number in range(1, 7)]
    hosts = {re.findall(r"trained on (\S+)", log)[-1] for log in logs}
    # All machines offer two slots, so that six trials fill the three machines.
    assert hosts == {SERVER, *GPUS}
    # Agents save checkpoints in the shared folder.
    assert {path.read_text() for path in (tmp_path / "shared").rglob("machine.txt")} == hosts

    assert "no connected agent is behind" in walk.run(
        inline_command("detcloud agent upgrade"), LAPTOP
    )
    walk.run(inline_command("detcloud agent remove gpu-1"), LAPTOP)
    assert machines["gpu-1"].listing() == before["gpu-1"]
    assert "gpu-1" not in walk.run("detcloud agent list | cat", LAPTOP)
    assert machines["gpu-1"].run("ps -eo args | grep '[d]etcloud' || true") == ""

    added = walk.seconds_of("detcloud agent add")
    print(f"the page took {spent:.0f} s, `agent add` of two machines {added:.1f} s")
    assert spent < WALK_SECONDS_MAX
    assert added < ADD_SECONDS_MAX * PATIENCE
