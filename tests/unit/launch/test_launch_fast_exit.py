import subprocess
import sys
from pathlib import Path

from tests.patience import PROCESS_SECONDS_MAX

ROOT = Path(__file__).resolve().parents[3]


def run_to_the_end(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    twice = "fast_exit.install_fast_exit()\n" * 2
    source = f"from detcloud.launch import fast_exit\n{twice}{program}"
    return subprocess.run(
        [sys.executable, "-c", source],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT / "harness")},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )


def test_exit_status_is_kept(tmp_path: Path) -> None:
    assert run_to_the_end(tmp_path, "fast_exit.exit_process(7)").returncode == 7
    assert run_to_the_end(tmp_path, "raise SystemExit(5)").returncode == 5


def test_unflushed_files_are_flushed_and_pipes_are_not(tmp_path: Path) -> None:
    program = """
import gzip, os
text, raw = open("text", "w"), open("bytes", "wb")
text.write("a"); raw.write(b"b")
packed = gzip.open("packed.gz", "wb"); packed.write(b"c")
kept = os.fdopen(os.pipe()[1], "w"); kept.write("never read")
print("d", end="")
fast_exit.exit_process(0)
"""
    done = run_to_the_end(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "d", "")
    assert (tmp_path / "text").read_text() == "a"
    assert (tmp_path / "bytes").read_bytes() == b"b"
    import gzip

    assert gzip.decompress((tmp_path / "packed.gz").read_bytes()) == b"c"


def test_threads_and_exit_functions_run_before_the_exit(tmp_path: Path) -> None:
    program = """
import atexit, threading, time
atexit.register(print, "function")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
fast_exit.exit_process(0)
"""
    assert run_to_the_end(tmp_path, program).stdout == "thread\nfunction\n"


def test_unwritable_output_exits_with_120(tmp_path: Path) -> None:
    program = "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint('x')\n"
    assert run_to_the_end(tmp_path, program + "fast_exit.exit_process(0)").returncode == 120
    assert run_to_the_end(tmp_path, program).returncode == 120
