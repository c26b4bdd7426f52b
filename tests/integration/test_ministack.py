"""The emulator of AWS ends with all processes of its functions."""

import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from detcloud.shared.processes import is_alive, list_descendants
from tests.emulators.ministack import ministack
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

# A function that is still called when the emulator ends.
SLOW = """
import pathlib
import time

def handle(event, context):
    pathlib.Path(event["mark"]).touch()
    time.sleep(120)
"""


def test_functions_in_a_call_end_with_the_emulator(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("slow.py", SLOW)
    with ministack(tmp_path) as aws:
        before = {process.pid for process in list_descendants(os.getpid())}
        aws.client("lambda").create_function(
            FunctionName="slow",
            Runtime="python3.13",
            Role="arn:aws:iam::000000000000:role/slow",
            Handler="slow.handle",
            Timeout=300,
            Code={"ZipFile": archive.getvalue()},
        )
        mark = tmp_path / "called"
        payload = json.dumps({"mark": str(mark)})
        aws.client("lambda").invoke(FunctionName="slow", InvocationType="Event", Payload=payload)
        wait_until(mark.exists, 30, "the call of the function")
        found = list_descendants(os.getpid())
        called = [process for process in found if process.pid not in before]
    assert called
    wait_until(lambda: not any(map(is_alive, called)), 2, "the end of the worker")
