"""Cold starts of a deployed cluster's functions.

Each function starts in a fresh process from the deployed archive. The time ends when the objects of
Lambda's INIT phase and of a first call exist.
"""

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Row, Scale, at_most, progress, row_without_target
from bench.fresh_processes import Program, median_starts
from infra.aws.bundle import EXTRAS, TARGETS, build_archive

API_MS_MAX, STREAM_MS_MAX = 700, 350
TARGETS_MS: Mapping[str, int | None] = {
    "api": API_MS_MAX,
    "advance": STREAM_MS_MAX,
    "tick": STREAM_MS_MAX,
    "wake": STREAM_MS_MAX,
    "tick, where a pool has work": None,
    "spot_notice": None,
    "checkpoint_gc": None,
    "suggest": None,
}
# Code that makes the objects of a first call, in addition to the import.
MAKES = {
    "api": "",
    "advance": "cluster.engine",
    "tick": "cluster.engine; cluster.provisioner",
    "wake": "cluster.engine; cluster.provisioner",
    "tick, where a pool has work": (
        "cluster.engine; cluster.provisioner;"
        " from provisioner.clouds.aws import ec2_api, provider;"
        " ec2_api.create_ec2_client('us-east-1')"
    ),
    "spot_notice": "cluster.engine",
    "checkpoint_gc": "cluster.collector",
    "suggest": "cluster.suggester; import optuna",
}
REFERENCE = "import fastapi, mangum, boto3; boto3.client('dynamodb')"
ROLE = "arn:aws:iam::000000000000:role/bench"
NETWORK = {"subnets": {"a": "subnet-1"}, "security_group": "sg-1", "instance_profile": ROLE}
ENVIRONMENT = {
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "POWERTOOLS_TRACE_DISABLED": "true",
    "DETCLOUD_TABLE": "bench",
    "DETCLOUD_OBJECTS": "objects",
    "DETCLOUD_CHECKPOINTS": "checkpoints",
    "DETCLOUD_CLUSTER": "detcloud-bench",
    "DETCLOUD_API_URL": "https://api.bench",
    "DETCLOUD_ADMIN_SHA256": "a" * 64,
    "DETCLOUD_CONFIG_SHA256": "b" * 64,
    "DETCLOUD_STORAGE_ROLE": ROLE,
    "DETCLOUD_INSTANCE_ROLE": ROLE,
    "DETCLOUD_GC_FUNCTION": "detcloud-bench-checkpoint-gc",
    "DETCLOUD_NETWORK": json.dumps(NETWORK),
}


def cold_starts(scale: Scale) -> Iterator[Row]:
    """Measure all functions and a reference by turns and yield a row per function."""
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        with progress("the functions' archives"):
            code = {kind: _unpack_archive(Path(folder), kind) for kind in EXTRAS}
        programs = {
            name: Program(_program(name), code.get(name, code["functions"])) for name in TARGETS_MS
        }
        programs["reference"] = Program(REFERENCE, code["functions"])
        taken = median_starts(programs, ENVIRONMENT, scale.cold_runs)
    beside = f"fastapi, mangum and one client of boto3: {taken['reference']:.0f} ms"
    for name, target in TARGETS_MS.items():
        what = f"cold start of {name}"
        if target is None:
            yield row_without_target(what, taken[name], "ms", beside=beside)
        else:
            yield at_most(what, taken[name], target, "ms", beside=beside)


def _unpack_archive(folder: Path, kind: str) -> Path:
    """The content of an archive for this machine's Python."""
    with zipfile.ZipFile(build_archive(TARGETS["emulator"], folder, kind)) as archive:
        archive.extractall(folder / kind)
    if not (folder / kind / "botocore").is_dir():
        # The measurement would use this machine's own botocore, which has all services of AWS.
        raise RuntimeError("the archive has no botocore of its own, with which functions start")
    return folder / kind


def _program(function: str) -> str:
    module = function.partition(",")[0]
    return (
        f"import lambdas.aws.{module}; from lambdas.aws.adapters import cluster; {MAKES[function]}"
    )
