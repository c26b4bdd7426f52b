"""Cold starts of the functions of a cluster on Google Cloud.

Each function starts in a fresh process with the content of the image. The time ends when the
application and the objects of a first call exist.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Row, Scale, at_most, progress, row_without_target
from bench.fresh_processes import Program, median_starts
from infra.function_image import fill_build_folder

RATIO_MAX = 1.6
# Code that makes the objects of a first call, in addition to the import.
MAKES = {
    "api": "",
    "tick": "cluster.engine; cluster.provisioner",
    "advance": "cluster.engine",
    "checkpoint_gc": "cluster.collector",
}
# Functions with a target.
HELD = ("api", "tick")
REFERENCE = "import fastapi, google.auth, google.auth.transport.urllib3"
ENVIRONMENT = {
    # No function reads credentials or makes a call at the start.
    "FIRESTORE_EMULATOR_HOST": "127.0.0.1:9",
    "DETCLOUD_PROJECT": "bench",
    "DETCLOUD_REGION": "us-central1",
    "DETCLOUD_DATABASE": "bench",
    "DETCLOUD_OBJECTS": "objects",
    "DETCLOUD_CHECKPOINTS": "checkpoints",
    "DETCLOUD_CLUSTER": "detcloud-bench",
    "DETCLOUD_API_URL": "https://api.bench",
    "DETCLOUD_ADMIN_SHA256": "a" * 64,
    "DETCLOUD_CONFIG_SHA256": "b" * 64,
    "DETCLOUD_INSTANCE_ACCOUNT": "instances@bench.iam.gserviceaccount.com",
    "DETCLOUD_STORAGE_ACCOUNT": "storage@bench.iam.gserviceaccount.com",
    "DETCLOUD_NETWORK": "{}",
}


def gcp_cold_starts(scale: Scale) -> Iterator[Row]:
    """Measure all functions and a reference by turns and yield a row per function."""
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        with progress("the functions' image"):
            code = _make_code(Path(folder) / "function")
        lines = {name: _program(name) for name in MAKES} | {"reference": REFERENCE}
        programs = {name: Program(line, code) for name, line in lines.items()}
        # Packages that the image lacks must be missing here, above all the packages of this
        # environment.
        taken = median_starts(programs, ENVIRONMENT, scale.cold_runs, ("-S", "-P"))
    reference = taken["reference"]
    beside = f"fastapi and google-auth: {reference:.0f} ms"
    for name in MAKES:
        what, spent = f"cold start of {name} on Google Cloud", taken[name]
        if name in HELD:
            ratio = spent / reference
            yield at_most(what, ratio, RATIO_MAX, "times", beside=f"{spent:.0f} ms; {beside}")
        else:
            yield row_without_target(what, spent, "ms", beside=beside)


def _make_code(folder: Path) -> Path:
    """Install and compile the image's content for this machine's Python, and return the folder."""
    fill_build_folder(folder)
    pip = ["-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:", "--no-deps"]
    wanted = ["--target", str(folder), "--requirement", str(folder / "requirements.txt")]
    subprocess.run([sys.executable, *pip, *wanted], check=True)
    mode = ["-qq", "--invalidation-mode", "unchecked-hash", str(folder)]
    # Some packages contain templates that are not valid Python.
    subprocess.run([sys.executable, "-m", "compileall", *mode], check=False)
    return folder


def _program(function: str) -> str:
    modules = f"import lambdas.gcp.serve, lambdas.gcp.{function}"
    return f"{modules}; from lambdas.gcp.adapters import cluster; {MAKES[function]}"
