"""Check in a few minutes that the GPUs of this machine train.

The folder needs only torch; steps that test detcloud use detcloud if it is installed. Each step has
a name, seconds, figures and a result: ok, failed or skipped. A figure of several GPUs belongs to
the worst GPU. In a trial, the figures are also metrics, and the results are the trial's metadata.
Large files are written below TMPDIR.

Exit codes: 0 if no step failed, 1 if a step failed, 2 without a GPU or for wrong options.
"""

import argparse
import faulthandler
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gpu_checkpoint_steps import check_checkpoint, check_store
from gpu_device_steps import (
    check_devices,
    check_learning,
    check_mig,
    check_nvml,
    check_products,
)
from gpu_process_steps import CHILDREN, check_collectives, check_compile
from gpu_step import Figures, Machine, Step, StepFailed, StepSkipped, nvidia_smi

SECONDS_MAX = 270.0
# A step that hangs is ended after this grace.
GRACE_SECONDS = 20.0
STEPS: dict[str, Callable[[Machine, Figures], None]] = {
    "devices": check_devices,
    "products": check_products,
    "learning": check_learning,
    "nvml": check_nvml,
    "mig": check_mig,
    "compile": check_compile,
    "collectives": check_collectives,
    "store": check_store,
    # The size of the checkpoint depends on the time that is left.
    "checkpoint": check_checkpoint,
}


def main(words: list[str] | None = None) -> int:
    """Run the steps and return the exit code.

    In a trial, report the steps by the Core API, and raise SystemExit if a step failed.
    """
    options = parse_options(words)
    if options.child:
        print(json.dumps(CHILDREN[options.child](options)), flush=True)
        return 0
    if "DETCLOUD_TRIAL_DIR" not in os.environ:
        code, fault = check(options, None)
        if fault:
            print(fault, file=sys.stderr, flush=True)
        return code
    from detcloud import core

    with core.init() as trial:
        code, fault = check(options, trial)
        if fault:
            # The text becomes the message of the failed trial.
            raise SystemExit(fault)
    return code


def parse_options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument(
        "--gpus", type=int, help="fail with fewer GPUs; default: the slots of a trial"
    )
    parser.add_argument("--cpu", action="store_true", help="run small steps without a GPU")
    parser.add_argument(
        "--only", action="append", choices=list(STEPS), help="run this step; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the steps to this file")
    parser.add_argument(
        "--seconds-max",
        type=float,
        default=SECONDS_MAX,
        help="skip the steps that are left after this time; default: %(default)s",
    )
    parser.add_argument(
        "--checkpoint-gb",
        type=float,
        help="size of the checkpoint; default: 10, or less without room or time",
    )
    parser.add_argument(
        "--store", metavar="URL", help="a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"
    )
    parser.add_argument(
        "--store-mb", type=int, help="size of the transfer to the store; default: 256"
    )
    for name in ("--child", "--device", "--rendezvous"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--rank", "--ranks"):
        parser.add_argument(name, type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def check(options: argparse.Namespace, trial: Any) -> tuple[int, str]:
    """Run the steps, and print a line for each step and then the table.

    Return the exit code, and a sentence for a code other than 0.
    """
    if options.cpu:
        devices = [torch.device("cpu")]
    else:
        devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if not devices:
        return 2, f"no GPU: {missing_gpu_reason()}; --cpu checks the CPU"
    steps: list[Step] = []
    names = [name for name in STEPS if name in (options.only or STEPS)]
    deadline = time.monotonic() + options.seconds_max
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        machine = Machine(devices, options, trial, deadline, Path(folder))
        with end_hanging_check(machine, steps):
            for number, name in enumerate(names, 1):
                if trial is not None and trial.preempt.should_preempt():
                    print("the cluster asked the trial to stop", flush=True)
                    return 0, ""
                print(f"[{number}/{len(names)}] {name} ...", flush=True)
                steps.append(Step(name, reason=f"no end within {options.seconds_max:.0f} s"))
                run_step(steps[-1], machine)
                print(steps[-1].line(), flush=True)
    publish(steps, options)
    if trial is not None:
        report_to_cluster(steps, trial)
    failed = [step.name for step in steps if step.result == "failed"]
    return (1, f"failed steps: {', '.join(failed)}") if failed else (0, "")


def run_step(step: Step, machine: Machine) -> None:
    """Run the step and record its result. An exception fails the step, and no other step."""
    began = time.monotonic()
    try:
        if machine.seconds_left <= 0:
            raise StepSkipped(f"the {machine.options.seconds_max:.0f} s are over")
        STEPS[step.name](machine, step.figures)
        result, reason = "ok", ""
    except StepSkipped as error:
        result, reason = "skipped", str(error)
    except StepFailed as error:
        result, reason = "failed", str(error)
    except Exception as error:
        result, reason = "failed", f"{type(error).__name__}: {error}"
    step.seconds = round(time.monotonic() - began, 2)
    step.result, step.reason = result, " ".join(reason.split())[:400]
    if machine.is_cuda:
        # After some errors of a GPU, every later call fails, too.
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


@contextmanager
def end_hanging_check(machine: Machine, steps: list[Step]) -> Iterator[None]:
    """End the process with code 1 if a step outlives the check's time by GRACE_SECONDS.

    First print the stacks and the table. No exception ends a call that hangs in a broken driver.
    """

    def end() -> None:
        faulthandler.dump_traceback()
        publish(steps, machine.options)
        shutil.rmtree(machine.folder, ignore_errors=True)
        os._exit(1)

    timer = threading.Timer(max(0.0, machine.seconds_left) + GRACE_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def publish(steps: list[Step], options: argparse.Namespace) -> None:
    """Print the table, and write the steps to the file of --json."""
    heading = f"{'step':<12} {'result':<8} {'seconds':>8}  reason; figures"
    print("", heading, *(step.line() for step in steps), sep="\n", flush=True)
    if options.json:
        is_ok = not any(step.result == "failed" for step in steps)
        document = {"ok": is_ok, "steps": [asdict(step) for step in steps]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def report_to_cluster(steps: list[Step], trial: Any) -> None:
    """Report the results as metadata of the trial, and the figures as a validation's metrics."""
    results = {step.name: [step.result, step.seconds, step.reason[:200]] for step in steps}
    trial.train.set_metadata({"gpu_check": results})
    metrics: Figures = {"failed_steps": sum(step.result == "failed" for step in steps)}
    for step in steps:
        for key, value in step.figures.items():
            if isinstance(value, int | float) and math.isfinite(value):
                metrics[f"{step.name}_{key}"] = value
    trial.train.report_validation_metrics(1, metrics)


def missing_gpu_reason() -> str:
    """Return why torch sees no GPU, as far as torch and nvidia-smi tell."""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.is_available()
    told = [str(warning.message) for warning in caught]
    if listed := nvidia_smi("-L"):
        told.append(f"torch sees none of {' '.join(listed.split())} (MIG needs an instance)")
    return "; ".join(told) or "nvidia-smi lists no GPU"


if __name__ == "__main__":
    sys.exit(main())
