import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud import core
from detcloud.shared.processes import read_process
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.core.trial_files import enter, make_trial, reports


@pytest.fixture(autouse=True)
def restore_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = make_trial(tmp_path)
    enter(made, monkeypatch)
    return made


def test_sigterm_calls_the_scripts_handler_and_requests_preemption(trial: Path) -> None:
    calls: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: calls.append(number))
    with core.init() as context:
        signal.raise_signal(signal.SIGTERM)
        assert calls == [signal.SIGTERM]
        assert context.preempt.should_preempt()
    assert reports(trial)[-1]["reason"] == "preempted"
    signal.raise_signal(signal.SIGTERM)
    assert calls == [signal.SIGTERM] * 2


def test_exit_of_the_script_handler_waits_for_the_checkpoint(trial: Path) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, leave)
    done: list[str] = []

    def train() -> None:
        with core.init() as context:
            assert not context.preempt.should_preempt()
            signal.raise_signal(signal.SIGTERM)
            assert context.preempt.must_stop_at_next_batch()
            done.append("saved")

    with pytest.raises(SystemExit, match="143"):
        train()
    assert done == ["saved"]
    assert reports(trial)[-1]["reason"] == "preempted"


def test_exit_of_the_script_handler_ends_code_without_preemption_checks(trial: Path) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)

    def train() -> None:
        with core.init():
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("the code continued")

    with pytest.raises(SystemExit):
        train()
    assert reports(trial)[-1]["kind"] == "exit"


def test_handler_set_within_the_block_is_kept(trial: Path) -> None:
    def handle(*_: object) -> None:
        return

    with core.init():
        signal.signal(signal.SIGTERM, handle)
    assert signal.getsignal(signal.SIGTERM) is handle


def test_ignored_signal_is_ignored_again_after_the_block(trial: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with core.init() as context:
        signal.raise_signal(signal.SIGTERM)
        assert context.preempt.should_preempt()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


FORK = """
import os, signal, time
from detcloud import core
with core.init() as context:
    child = os.fork()
    while child == 0:
        time.sleep(0.05)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM, status
    assert not context.preempt.should_preempt()
"""


def test_sigterm_ends_a_fork_of_the_training_process(trial: Path) -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=PROCESS_SECONDS_MAX)
    assert reports(trial)[-1]["reason"] != "errored"


def test_preemption_check_records_the_process_in_the_claim(trial: Path) -> None:
    claim = trial / "out" / ".rank-0"
    own = read_process(os.getpid())
    assert own is not None
    with core.init() as context:
        assert claim.read_text() == ""
        context.preempt.should_preempt()
        assert claim.read_text() == f"{own.pid} {own.started_ticks}"
    assert claim.read_text() == ""
