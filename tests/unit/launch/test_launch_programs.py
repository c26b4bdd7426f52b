import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.launch.wrap_rank import LinePrefixer
from detcloud.shared.launcher_names import LAUNCHERS
from tests.patience import PROCESS_SECONDS_MAX

ROOT = Path(__file__).resolve().parents[3]
# Print the arguments and variables, in place of horovodrun and deepspeed.
STAND_IN = f"""#!{sys.executable}
import json, os, sys
names = ("USE_HOROVOD", "USE_DEEPSPEED", "DET_CHIEF_IP")
print(json.dumps([sys.argv[1:], [name for name in names if name in os.environ]]))
"""


def launch(
    folder: Path, name: str, *words: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"detcloud.launch.{name}", *words],
        env={"PATH": f"{folder}:/usr/bin:/bin", "PYTHONPATH": str(ROOT / "harness"), **variables},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "program", "options", "variable", "rank"),
    [
        (
            "horovod",
            "horovodrun",
            ["-np", "2", "-H", "localhost:2", "--x"],
            "USE_HOROVOD",
            "HOROVOD_RANK,OMPI_COMM_WORLD_RANK,PMI_RANK",
        ),
        (
            "deepspeed",
            "deepspeed",
            ["--num_gpus", "2", "--master_port", "20500", "--no_python", "--no_local_rank", "--x"],
            "USE_DEEPSPEED",
            "RANK",
        ),
    ],
)
def test_external_launcher_gets_slots_overrides_and_wrapped_workers(
    tmp_path: Path, name: str, program: str, options: list[str], variable: str, rank: str
) -> None:
    gang = {"DETCLOUD_SLOTS": "2", "DETCLOUD_RENDEZVOUS_PORT": "20500"}
    missing = launch(tmp_path, name, "--x", "--", "run", **gang)
    assert missing.returncode == 1
    assert f"{program} was not found on the PATH: install {name}" in missing.stderr
    (tmp_path / program).write_text(STAND_IN)
    (tmp_path / program).chmod(0o755)
    words, variables = json.loads(launch(tmp_path, name, "--x", "--", "run", **gang).stdout)
    wrapped = [sys.executable, "-m", "detcloud.launch.wrap_rank", rank, "--", "run"]
    assert words == [*options, *wrapped]
    assert variables == [variable, "DET_CHIEF_IP"]
    spread = launch(tmp_path, name, "run", DETCLOUD_NODES="2")
    assert (spread.returncode, "on one machine, but this trial is on 2" in spread.stderr) == (
        1,
        True,
    )


def test_a_launcher_with_a_single_slot_runs_the_worker_directly(tmp_path: Path) -> None:
    for words in (("autohorovod",), ("horovod", "--autohorovod")):
        done = launch(tmp_path, *words, "sh", "-c", "echo alone; exit 4")
        assert (done.returncode, done.stdout) == (4, "alone\n")


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        # A progress bar overwrites its line; a line end may be split between two pieces.
        ([b"\r 1%", b"\r 2%\r", b"\nend"], [b"", b" 1%", b" 2%", b"end"]),
        ([b"a\r\n", b"\r", b"\n", b"b"], [b"a", b"", b"b"]),
        # A character of two bytes spans the limit of 8 KiB.
        ([b"x" * 8191, b"\xc3\xa9y\n"], [b"x" * 8191, b"\xc3\xa9y"]),
        ([b"z" * 20_000], [b"z" * 8192, b"z" * 8192, b"z" * 3616]),
    ],
)
def test_output_is_split_into_lines_for_any_pieces(pieces: list[bytes], lines: list[bytes]) -> None:
    prefixer = LinePrefixer(3)
    output = b"".join(map(prefixer.feed, pieces)) + prefixer.flush()
    assert output == b"".join(b"[rank=3] " + line + b"\n" for line in lines)


def test_launchers_print_help() -> None:
    for name in (*LAUNCHERS, "trial_worker"):
        done = launch(Path("/"), name, "-h")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: python3 -m detcloud.launch.{name} ")


def test_lines_of_a_worker_are_prefixed_by_the_rank() -> None:
    script = r"printf 'a\rb\n\nc'; echo wrong >&2; exit 3"
    done = subprocess.run(
        [sys.executable, "-m", "detcloud.launch.wrap_rank", "NONE,RANK", "sh", "-c", script],
        env={**os.environ, "RANK": "7", "PYTHONPATH": str(ROOT / "harness")},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.stdout == "[rank=7] a\n[rank=7] b\n[rank=7] \n[rank=7] c\n"
    assert (done.stderr, done.returncode) == ("[rank=7] wrong\n", 3)
