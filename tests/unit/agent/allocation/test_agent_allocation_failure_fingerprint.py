"""The fingerprint of a failure, from the last traceback in the log."""

from __future__ import annotations

import pytest

from detcloud.agent.allocation.failure_fingerprint import failure_fingerprint

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/detcloud/allocations/7.1/code/train.py", line 12, in <module>
    main()
    ~~~~^^
  File "/srv/detcloud/allocations/7.1/code/train.py", line 8, in main
    loss(batch)
ValueError: expected 10 classes, got 12 at 0x7f3a2b
"""


def test_fingerprint_is_a_short_digest() -> None:
    fingerprint = failure_fingerprint(TRACEBACK)
    assert len(fingerprint) == 16
    assert int(fingerprint, 16) >= 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("allocations/7.1", "allocations/7.2"),
        ("/srv/detcloud/allocations/7.1/code/", "/other/place/"),
        ("0x7f3a2b", "0x99"),
        ("got 12", "got 344"),
        ("    loss(batch)\n", "    loss(batch)  # changed\n"),
    ],
)
def test_places_numbers_and_quoted_code_do_not_count(old: str, new: str) -> None:
    assert failure_fingerprint(TRACEBACK.replace(old, new)) == failure_fingerprint(TRACEBACK)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("line 8", "line 9"),
        ("in main", "in validate"),
        ("train.py", "model.py"),
        ("ValueError", "TypeError"),
        ("classes", "channels"),
    ],
)
def test_frames_and_errors_count(old: str, new: str) -> None:
    assert failure_fingerprint(TRACEBACK.replace(old, new)) != failure_fingerprint(TRACEBACK)


def test_output_around_the_traceback_does_not_count() -> None:
    log = f"epoch 1\n{TRACEBACK}cleaning up 17 workers\n[detcloud] the trial ended\n"
    assert failure_fingerprint(log) == failure_fingerprint(TRACEBACK)


def test_last_traceback_counts() -> None:
    earlier = TRACEBACK.replace("ValueError", "KeyError")
    assert failure_fingerprint(earlier + TRACEBACK) == failure_fingerprint(TRACEBACK)


def test_traceback_of_a_launcher_gives_way_to_the_failure_behind() -> None:
    launcher = """\
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
    assert failure_fingerprint(TRACEBACK + launcher) == failure_fingerprint(TRACEBACK)
    assert failure_fingerprint(launcher) == ""


def test_lines_of_other_ranks_are_skipped() -> None:
    ranked = "".join(f"[rank=1] {line}\n[rank=0] waits\n" for line in TRACEBACK.splitlines())
    assert failure_fingerprint(ranked) == failure_fingerprint(TRACEBACK)


@pytest.mark.parametrize(
    "error",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "TimeoutError",
        "urllib.error.URLError: <urlopen error>",
        "torch.distributed.DistNetworkError: failed to listen",
        "RuntimeError: NCCL error in: ../ProcessGroupNCCL.cpp",
        "OSError: [Errno 28] No space left on device",
        "botocore.exceptions.EndpointConnectionError: Could not connect",
    ],
)
def test_errors_that_may_pass_have_no_fingerprint(error: str) -> None:
    log = TRACEBACK.replace("ValueError: expected 10 classes, got 12 at 0x7f3a2b", error)
    assert failure_fingerprint(log) == ""


@pytest.mark.parametrize(
    "log",
    [
        "",
        "killed\n",
        TRACEBACK[: TRACEBACK.index("ValueError")],
        "Traceback (most recent call last):",
    ],
)
def test_log_without_a_complete_traceback_has_no_fingerprint(log: str) -> None:
    assert failure_fingerprint(log) == ""
