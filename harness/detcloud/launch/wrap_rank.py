"""The wrapper of a worker, `python3 -m detcloud.launch.wrap_rank RANK CMD...`.

Each line that the worker prints gets the prefix `[rank=N] `, by which `detcloud trial logs --rank
N` finds the line. The worker does not outlive the wrapper, nor the wrapper its launcher. If another
worker of the trial has failed, the worker has FAILED_GRACE_SECONDS to end after SIGTERM. A worker
that refuses the hyperparameters ends the other workers like a failed worker.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from detcloud.launch.gang_failure import announce_wrapper, has_failed, has_refused, mark_failure
from detcloud.shared.clean_exit import offer_clean_exit
from detcloud.shared.parent_death import adopt_orphans, end_with_parent
from detcloud.shared.process_exits import exit_text
from detcloud.shared.processes import list_descendants

LINE_BYTES_MAX = 8 * 1024
PIPE_BYTES = 64 * 1024
FAILED_GRACE_SECONDS = 4.0
POLL_SECONDS = 0.5
# The exit code for a worker that ended with 0 after a refusal, so that the launcher ends the gang.
REFUSED_CODE = 1
# The time for remaining output: a surviving grandchild may keep the pipes open.
DRAIN_SECONDS_MAX = 2.0
USAGE = "usage: python3 -m detcloud.launch.wrap_rank [--no-redirect-stdio] RANK [--] CMD [ARGS...]"
DESCRIPTION = (
    "Runs CMD and puts [rank=RANK] before each line that it prints. RANK is a number, or names of\n"
    "environment variables with commas between them; the first with a number as its value counts.\n"
    "With --no-redirect-stdio the lines stay as they are."
)


class LinePrefixer:
    """Splits a worker's output into lines and prefixes each with the rank.

    A carriage return ends a line. Longer lines than LINE_BYTES_MAX are split.
    """

    def __init__(self, rank: int) -> None:
        self._prefix = f"[rank={rank}] ".encode()
        self._rest = b""
        self._is_after_return = False

    def feed(self, content: bytes) -> bytes:
        """Add output and return the prefixed lines that are complete. May return b"".

        The rest is kept for the next call. A rest above LINE_BYTES_MAX is returned in pieces, each
        as a line.
        """
        if self._is_after_return and content.startswith(b"\n"):
            # This newline belongs to the carriage return at the end of the previous content.
            content = content[1:]
        self._is_after_return = content.endswith(b"\r")
        text = (self._rest + content).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        while len(self._rest) > LINE_BYTES_MAX:
            piece = _first_piece(self._rest)
            lines.append(piece)
            self._rest = self._rest[len(piece) :]
        return b"".join(map(self._render_line, lines))

    def flush(self) -> bytes:
        """Return the last line with the prefix, if the output did not end with a newline.

        Return b"" otherwise.
        """
        rest, self._rest = self._rest, b""
        return self._render_line(rest) if rest else b""

    def _render_line(self, line: bytes) -> bytes:
        """Return a line with prefix and newline, split into pieces if too long."""
        pieces = [_first_piece(line)]
        while line := line[len(pieces[-1]) :]:
            pieces.append(_first_piece(line))
        return b"".join(self._prefix + piece + b"\n" for piece in pieces)


def _first_piece(line: bytes) -> bytes:
    """Return at most LINE_BYTES_MAX first bytes of a line. Split no character of UTF-8."""
    end = LINE_BYTES_MAX
    while end < len(line) and end > LINE_BYTES_MAX - 4 and line[end] & 0xC0 == 0x80:
        end -= 1
    return line[:end]


def parse_rank(text: str, environment: Mapping[str, str]) -> int | None:
    """Return the rank: a number, or the value of the first named variable that contains a number.

    `text` is a number or names of variables with commas between them. Return None without a rank.
    """
    if text.isdigit():
        return int(text)
    values = (environment.get(name.strip(), "") for name in text.split(","))
    return next((int(value) for value in values if value.isdigit()), None)


def main(argv: Sequence[str]) -> int:
    """Run a worker to the end and return the exit code, 128 + n after signal n.

    Prefix each output line with the rank, unless `--no-redirect-stdio` comes first. Forward SIGTERM
    and SIGINT. At the end, kill the processes that the worker leaves. After a failure, or a refusal
    of the hyperparameters, write the mark by which the trial's other wrappers learn of the failure;
    after a signal to this wrapper, write none.

    Return 0 after printing the usage for `-h`. Return 1 for invalid arguments, and if the worker
    refused the hyperparameters and ended with 0. Return 127 if the command cannot be started.
    """
    words = list(argv)
    if words[:1] and words[0] in ("-h", "--help"):
        print(f"{USAGE}\n\n{DESCRIPTION}")
        return 0
    redirects = "--no-redirect-stdio" not in words[:1]
    words = words if redirects else words[1:]
    command = words[2:] if words[1:2] == ["--"] else words[1:]
    rank = parse_rank(words[0], os.environ) if words else None
    if rank is None or not command:
        problem = (
            "CMD is missing"
            if rank is not None
            else "RANK is neither a number nor the name of a variable that is set"
        )
        print(f"{USAGE}\ndetcloud: {problem if words else 'RANK is missing'}", file=sys.stderr)
        return 1
    return _run(rank, command, redirects=redirects)


def _run(rank: int, command: Sequence[str], *, redirects: bool) -> int:
    """Run the worker as `_run_worker` does, and announce this wrapper to the launcher meanwhile.

    The launcher marks the failure of a wrapper that was killed. The kernel ends this process when
    its parent ends. Orphaned descendants become children of this process. At the end, kill the
    processes that the worker leaves. After a failure or a refusal of the hyperparameters, write the
    mark by which the trial's other wrappers end their workers. `redirects`: whether each output
    line passes through this process and gets the rank as a prefix.

    Return the worker's exit code, 128 + n after signal n, 127 if the command cannot be started.
    Return REFUSED_CODE if the worker refused the hyperparameters and ended with 0.
    """
    end_with_parent(os.getppid())
    adopt_orphans()
    offer_clean_exit()
    with announce_wrapper(rank):
        return _run_worker(rank, command, redirects=redirects)


def _run_worker(rank: int, command: Sequence[str], *, redirects: bool) -> int:
    """Run the worker, kill the processes that the worker leaves, and return the exit code.

    Forward SIGTERM and SIGINT to the worker, unless this process leads a process group, which gets
    the signals as a whole. After a failure or a refusal of the hyperparameters, write the mark of
    the failure. By this file the trial's other wrappers on this node learn of the failure. After a
    signal to this wrapper, write no mark. With `redirects`, each output line gets the rank as a
    prefix; otherwise the worker inherits the outputs of this process.

    Return 127 if the command cannot be started, and 128 + n after signal n. Return REFUSED_CODE if
    the worker refused the hyperparameters and ended with 0 without a signal to this wrapper.
    """
    wrapper, pipe = os.getpid(), subprocess.PIPE if redirects else None
    try:
        worker = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, preexec_fn=lambda: end_with_parent(wrapper)
        )
    except (OSError, ValueError) as error:
        print(f"detcloud: {command[0]!r} cannot be started: {error}", file=sys.stderr, flush=True)
        mark_failure(f"rank {rank}: {command[0]!r} cannot be started")
        return 127
    terminated: list[float] = []

    def note_signal(number: int, _frame: FrameType | None) -> None:
        terminated.append(time.monotonic())
        # If this process leads a group, the launcher has sent the signal to the worker too.
        if os.getpgrp() != wrapper:
            worker.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note_signal)
    code = _watch(worker, rank, terminated)
    _kill_orphans()
    how, code = exit_text(code), code if code >= 0 else 128 - code
    if not code and not terminated and has_refused(rank):
        # The gang cannot continue without this worker, and might wait forever.
        mark_failure(f"rank {rank} refused the hyperparameters")
        return REFUSED_CODE
    if code and not terminated:
        mark_failure(f"rank {rank} {how}")
    return code


def _kill_orphans() -> None:
    """Send SIGKILL once to every descendant of this process, without waiting for the ends.

    Processes that have ended or belong to other users are skipped.
    """
    for process in list_descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)


def _watch(worker: subprocess.Popen[bytes], rank: int, terminated: Sequence[float]) -> int:
    """Forward the worker's output until the worker has ended, and return the exit code.

    The code is -n after signal n. A process that the worker leaves may keep the output open; stop
    reading DRAIN_SECONDS_MAX after the worker's end.

    Kill the worker if another worker of the trial has failed and FAILED_GRACE_SECONDS have passed
    since the first of the `terminated` times, the times of signals to this wrapper.
    """
    streams = selectors.DefaultSelector()
    for source, sink in ((worker.stdout, 1), (worker.stderr, 2)):
        if source is not None:
            os.set_blocking(source.fileno(), False)
            streams.register(source, selectors.EVENT_READ, (sink, LinePrefixer(rank)))
    ended_at = None
    while streams.get_map() or worker.poll() is None:
        for key, _ in streams.select(POLL_SECONDS) if streams.get_map() else ():
            if not _pass_on(key.fileobj, *key.data):
                streams.unregister(key.fileobj)
        if not streams.get_map() and worker.poll() is None:
            _wait_briefly(worker)
        now = time.monotonic()
        if terminated and now - terminated[0] > FAILED_GRACE_SECONDS and has_failed():
            worker.kill()
        if worker.poll() is not None:
            ended_at = ended_at or now
            if now - ended_at > DRAIN_SECONDS_MAX:
                break
    return worker.wait()


def _wait_briefly(worker: subprocess.Popen[bytes]) -> None:
    """Wait for the worker's end, at most POLL_SECONDS."""
    try:
        worker.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return


def _pass_on(source: Any, sink: int, prefixer: LinePrefixer) -> bool:
    """Forward complete lines of available output to the descriptor `sink`, each with the rank.

    At the end of the output, forward the incomplete last line too, and return False. Raises OSError
    if `sink` cannot be written.
    """
    content = os.read(source.fileno(), PIPE_BYTES)
    lines = prefixer.feed(content) if content else prefixer.flush()
    while lines:
        lines = lines[os.write(sink, lines) :]
    return bool(content)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
