"""`detcloud trial stacks`: the stacks of hanging processes, from the trial's log."""

import faulthandler
import tempfile
from pathlib import Path
from typing import cast

from detcloud.client.records import LogLine
from detcloud.client.stack_dumps import find_stack_dumps
from tests.unit.cli.commands.test_cli_commands_trial import line
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster, Item

THREAD = "Current thread 0x00007f01 (most recent call first):"
FRAME = '  File "train.py", line 7 in wait'


def printed_stacks() -> list[str]:
    """Return the lines that this Python prints for the present stacks."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read().splitlines()


def log_of_two_ranks() -> list[Item]:
    """Return a log in which two ranks print their stacks at the same time."""
    texts = [(0, "epoch 1"), (0, THREAD), (1, "Thread 0x1 (most recent call first):"), (0, FRAME)]
    texts += [(1, '  File "data.py", line 3 in fetch'), (0, ""), (0, "epoch 2"), (1, "epoch 2")]
    return [line(number, text, rank=rank) for number, (rank, text) in enumerate(texts)]


def test_stacks_of_ranks_are_separate(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    ended_cluster.lines[1] = log_of_two_ranks()
    done = detcloud("trial", "stacks", "1")
    assert done.code == 0
    assert done.out.splitlines() == [
        "# rank 0, 2026-01-31 12:00:00+0000",
        THREAD,
        FRAME,
        "",
        "# rank 1, 2026-01-31 12:00:00+0000",
        "Thread 0x1 (most recent call first):",
        '  File "data.py", line 3 in fetch',
    ]


def test_stacks_are_written_to_a_file(
    ended_cluster: FakeCluster, detcloud: Detcloud, tmp_path: Path
) -> None:
    ended_cluster.lines[1] = log_of_two_ranks()
    path = tmp_path / "stacks.txt"
    done = detcloud("trial", "stacks", "1", "--output", str(path))
    assert done.out == f"wrote the stacks of 2 ranks to {path}\n"
    assert path.read_text().startswith("# rank 0, ")
    refused = detcloud("trial", "stacks", "1", "-o", str(tmp_path))
    assert (refused.code, refused.out) == (1, "")
    assert "Is a directory" in refused.err


def test_log_without_stacks_is_said(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    ended_cluster.lines[1] = [line(0, '  File "a.py", line 1 in f')]
    done = detcloud("trial", "stacks", "1")
    assert (done.code, done.out) == (0, "")
    assert "the log of trial 1 has no stacks" in done.err


def test_stacks_of_this_python_are_found() -> None:
    printed = printed_stacks()
    texts = enumerate(["before", *printed, "after"])
    [dump] = find_stack_dumps([cast(LogLine, line(number, text)) for number, text in texts])
    assert dump.text.splitlines() == printed
