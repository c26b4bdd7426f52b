"""A small check of a trial's machine, for use where examples/gpu_check is missing.

Exit codes: 0 if no step failed, 1 otherwise.
"""

import os
import shutil
import subprocess
import sys
import time

from detcloud import core


def list_gpus() -> tuple[str, str]:
    """Return the result and the reason of the step that lists the GPUs."""
    if "--cpu" in sys.argv:
        return "skipped", "the machine has no GPU"
    if shutil.which("nvidia-smi") is None:
        return "failed", "nvidia-smi is missing"
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    return ("failed" if done.returncode else "ok"), (done.stdout or done.stderr).strip()[:200]


def compute() -> tuple[str, str]:
    """Return the result and the reason of the step that computes."""
    total = sum(number * number for number in range(100_000))
    return ("ok" if total == 333328333350000 else "failed"), f"{os.cpu_count()} processors"


def main() -> int:
    """Run the steps, report the results, and return the exit code."""
    with core.init() as trial:
        told = {}
        for name, step in (("devices", list_gpus), ("compute", compute)):
            began = time.monotonic()
            result, reason = step()
            told[name] = [result, round(time.monotonic() - began, 2), reason]
            print(name, *told[name], flush=True)
        failed = sum(result == "failed" for result, _, _ in told.values())
        trial.train.set_metadata({"gpu_check": told})
        trial.train.report_validation_metrics(1, {"failed_steps": failed})
        if failed:
            raise SystemExit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
