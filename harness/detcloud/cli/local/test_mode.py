"""Local test mode: a batch, a validation and a checkpoint in this terminal, without a cluster."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import detcloud
from detcloud.cli.local.config_checker import check_file
from detcloud.cli.rendering.quantities import bytes_text
from detcloud.cli.rendering.table import cell_text
from detcloud.client.upload import pack_model_code
from detcloud.compatibility.variables import determined_variables
from detcloud.shared.archive import extract
from detcloud.shared.hparam_values import choose_hparams
from detcloud.shared.plurals import count_text

SEED_MAX = 2**31


def run_local_test(
    config_file: Path, model_dir: Path | None, overrides: list[str], includes: list[Path]
) -> int:
    """Test a model in this terminal by a trial of one batch, a validation and a checkpoint. Return
    0 if the trial completed, otherwise 1.

    The trial runs on a copy of the files that `create` would upload. A file that `.detignore`
    excludes is therefore missing here too. The hyperparameters, the trial's output and the result
    are printed, and a failure to stderr. All files are in a temporary folder that is deleted at the
    end, checkpoints included. The run has no time limit.

    Args:
        config_file: the experiment configuration, which is checked first.
        model_dir: the folder or file with the training code; None for no code.
        overrides: KEY=VALUE texts that change fields of the configuration.
        includes: further files and folders to copy.

    Raises:
        InvalidConfigError: the configuration was refused.
        DetcloudError: a file or folder is missing or cannot be packed, or the server is not
            installed.
    """
    report = check_file(config_file, overrides, "--for-trial")
    config = report["config"]
    with tempfile.TemporaryDirectory(prefix="detcloud-test-") as name:
        folder = Path(name)
        code = folder / "code"
        with pack_model_code(model_dir, includes) as archive:
            extract(archive.path, code)
        write_trial_directory(folder, config)
        print(f"testing {config_file} with {_hparams_line(config)}", flush=True)
        exit_code = _run_trial(folder, code, report["environment_variables"]["cpu"])
        return _print_summary(folder, exit_code)


def write_trial_directory(folder: Path, config: dict[str, Any]) -> None:
    """Create `in/`, `out/` and `checkpoints/` (docs/trial-directory.md) for a trial of a single
    batch.

    `in/` gets directives.json and spec.json. `out/` and `checkpoints/` stay empty.

    Args:
        folder: an existing folder without these three folders; otherwise OSError is raised.
        config: the checked configuration of the experiment.
    """
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    (folder / "checkpoints").mkdir()
    directives = {
        "revision": 1,
        "length": 1,
        "closed": True,
        "answered": 0,
        "best_validation": None,
        "preempt": None,
    }
    (folder / "in" / "directives.json").write_text(json.dumps(directives), "utf-8")
    (folder / "in" / "spec.json").write_text(json.dumps(_trial_spec(folder, config)), "utf-8")


def middle_hparams(space: dict[str, Any]) -> dict[str, Any]:
    """Choose values of hyperparameters: constants, the middle of each range, the first of each
    category. The result has the nesting of `space`.

    The middle of a log range is the middle of its exponents: base 10 from -4 to 0 gives 10^-2. The
    middle of a range of integers is rounded down.

    Args:
        space: the `hyperparameters` of a checked configuration; empty gives {}.
    """
    return choose_hparams(space, _middle_number)


def _middle_number(value: Mapping[str, Any]) -> Any:
    """Return the middle of a range; for a log range, the base to the power of the middle exponent.
    Integers are rounded down.

    Args:
        value: a range of the configuration: `type`, `minval`, `maxval` and, for a log range,
            `base`.
    """
    ends = value["minval"] + value["maxval"]
    match value["type"]:
        case "int":
            return ends // 2
        case "double":
            return ends / 2
    return float(value["base"] ** (ends / 2))


def _trial_spec(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `in/spec.json` for the test trial.

    The seed is the experiment's seed, or a random number without a seed. The hyperparameters are
    the result of `middle_hparams`.
    """
    searcher = config.get("searcher") or {}
    seed = (config.get("reproducibility") or {}).get("experiment_seed")
    return {
        "version": 1,
        "cluster_id": "local",
        "experiment_id": 1,
        "trial_id": 1,
        "allocation_id": "1.1",
        "epoch": 1,
        "trial_seed": random.randrange(SEED_MAX) if seed is None else int(seed) % SEED_MAX,
        "hparams": middle_hparams(config.get("hyperparameters") or {}),
        # No debugger can be attached without a cluster.
        "config": {**config, "debugger": {}},
        "entrypoint": config.get("entrypoint") or "",
        "latest_checkpoint": None,
        "storage": {"type": "directory", "path": str(folder / "checkpoints")},
        "steps_completed": 0,
        "slots": [0],
        "threads": os.cpu_count() or 1,
        "rank": 0,
        "size": 1,
        "scheduling_unit": 1,
        "min_validation_batches": 0,
        "min_checkpoint_batches": 0,
        "checkpoint_policy": "all",
        "perform_initial_validation": False,
        "metric": searcher.get("metric") or "validation_loss",
        "smaller_is_better": searcher.get("smaller_is_better", True),
        "test_mode": True,
    }


def _run_trial(folder: Path, code: Path, variables: list[str]) -> int:
    """Run the trial in a child process with the code's folder as the working folder, and return the
    exit code of the process.

    The child writes to this terminal and has no time limit.

    Args:
        folder: the trial directory, from which `in/spec.json` is read.
        code: the folder with the training code, which comes first in PYTHONPATH.
        variables: NAME=VALUE texts for the child's environment.
    """
    package_parent = str(Path(detcloud.__file__).parents[1])
    folders = [str(code), package_parent, os.environ.get("PYTHONPATH", "")]
    spec = json.loads((folder / "in" / "spec.json").read_text("utf-8"))
    environment = {
        **os.environ,
        **determined_variables(spec),
        **dict(variable.split("=", 1) for variable in variables),
        "DETCLOUD_TRIAL_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
    }
    command = [sys.executable, "-m", "detcloud.launch.trial"]
    return subprocess.run(command, env=environment, cwd=code, check=False).returncode


def _print_summary(folder: Path, exit_code: int) -> int:
    """Print the metrics and the checkpoint of the trial, and whether the test passed. Return 0 if
    the trial completed, otherwise 1.

    A failure is printed to stderr, with the trial's reason, or with the exit code if the trial
    reported no reason.

    Args:
        folder: the trial directory. The trial's report files in `out/` are read.
        exit_code: the exit code of the trial's process.
    """
    reason = None
    message = ""
    for line in _read_reports(folder / "out"):
        if line["kind"] == "metrics":
            print(f"{line['group']} metrics: {cell_text(line['metrics'])}")
        elif line["kind"] == "checkpoint":
            size = bytes_text(line["size_bytes"])
            print(f"checkpoint: {size} in {count_text(line['files'], 'file')}")
        elif line["kind"] == "exit":
            reason, message = line["reason"], line.get("message") or ""
    if reason == "completed":
        print("the test passed")
        return 0
    ended = f"the trial ended with {reason}" if reason else f"the process exited with {exit_code}"
    print(f"the test failed: {ended}{': ' if message else ''}{message}", file=sys.stderr)
    return 1


def _read_reports(out: Path) -> Iterator[dict[str, Any]]:
    """Yield the report lines of the trial as parsed JSON, oldest first; nothing without report
    files.
    """
    for path in sorted(out.glob("report-*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            yield json.loads(line)


def _hparams_line(config: dict[str, Any]) -> str:
    """Return the chosen hyperparameters as `hyperparameters {JSON}`."""
    return f"hyperparameters {json.dumps(middle_hparams(config.get('hyperparameters') or {}))}"
