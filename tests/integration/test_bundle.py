"""The deployed archives, built by pip from the package index."""

import re
import zipfile
from pathlib import Path

import botocore
import pytest

from infra.aws.bundle import EXTRAS, SERVICES, TARGETS, build_archive, find_interpreter
from infra.aws.names import FUNCTIONS
from tests.emulators.lambda_root import LambdaRoot
from tests.emulators.server import missing

ROOT = Path(__file__).parents[2]
VARIABLES = {
    **{
        f"DETCLOUD_{name}": f"vision-{name.lower()}" for name in ("TABLE", "OBJECTS", "CHECKPOINTS")
    },
    "DETCLOUD_CLUSTER": "detcloud-vision",
    "DETCLOUD_API_URL": "https://a1b2c3.execute-api.eu-central-1.amazonaws.com",
    "DETCLOUD_ADMIN_SHA256": "0" * 64,
    "DETCLOUD_CONFIG_SHA256": "0" * 64,
    "DETCLOUD_STORAGE_ROLE": "arn:aws:iam::111111111111:role/detcloud-vision-storage",
    "DETCLOUD_INSTANCE_ROLE": "arn:aws:iam::111111111111:role/detcloud-vision-instance",
    "DETCLOUD_NETWORK": "{}",
    "POWERTOOLS_SERVICE_NAME": "api",
    "POWERTOOLS_TRACE_DISABLED": "true",
}
# A request in API Gateway's form, and the origin of every imported package.
ANSWER_HEALTH = """
import importlib, json, time
began = time.perf_counter()
from lambdas.aws.api import handler
seconds = time.perf_counter() - began
path = "/api/v1/health"
http = {"method": "GET", "path": path, "sourceIp": "203.0.113.1", "protocol": "HTTP/1.1"}
host = "a1b2c3.execute-api.eu-central-1.amazonaws.com"
event = {"version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "",
         "headers": {"host": host}, "isBase64Encoded": False,
         "requestContext": {"http": http, "domainName": host, "stage": "$default"}}
class Context:
    aws_request_id = "1"; function_name = "api"; memory_limit_in_mb = 1024
    invoked_function_arn = "arn:aws:lambda:eu-central-1:111111111111:function:api"
    def get_remaining_time_in_millis(self): return 30_000
answer = handler(event, Context())
import botocore
from control_plane.agents.bundled_packages import bundle_files
for name in NAMES:
    importlib.import_module(f"lambdas.aws.{name}").handler
try:
    open("/var/task/written", "w"); writes = True
except OSError:
    writes = False
print()
print(json.dumps({"status": answer["statusCode"], "botocore": botocore.__file__,
                  "seconds": seconds, "writes": writes, "python": sys.version,
                  "bundles": sorted({place.parts[0] for place, _ in bundle_files()})}))
"""


@pytest.mark.nightly
def test_every_function_starts_in_the_layout_of_lambda(tmp_path: Path) -> None:
    target = TARGETS["x86_64"]
    interpreter = find_interpreter(target.python)
    if interpreter is None:
        missing("python3.13", f"no Python {target.python} runs here, the functions' own")
    root = LambdaRoot(tmp_path / "root", build_archive(target, tmp_path), Path(interpreter))
    answers = root.run(ANSWER_HEALTH.replace("NAMES", repr(FUNCTIONS)), VARIABLES)
    assert answers["status"] == 200
    assert answers["botocore"].startswith("/var/task/")
    assert answers["python"].startswith("3.13.")
    assert not answers["writes"]
    # The packages that trials get with the agent's code.
    assert answers["bundles"] == ["detignore", "gpu", "s3"]


def test_archive_describes_every_service_that_functions_call() -> None:
    """A client of a missing service would fail only in the cloud."""
    folders = ("control_plane", "lambdas", "provisioner", "harness/detcloud/shared")
    texts = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    call = re.compile(r"(?:create_client|lazy_client)\(\s*\"([a-z0-9-]+)\"")
    called = {name for text in texts for name in call.findall(text)}
    # `s3` is created by a name that is not a literal.
    assert called | {"s3"} == SERVICES


# Downloading and packing an archive for another machine takes longer than all other tests of this
# module.
@pytest.mark.nightly
@pytest.mark.parametrize("kind", EXTRAS)
def test_archive_for_another_machine_is_complete_and_within_the_quotas(
    kind: str, tmp_path: Path
) -> None:
    archive = build_archive(TARGETS["arm64"], tmp_path, kind)
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        unpacked = sum(info.file_size for info in opened.infolist())
    # The archive contains compiled code, all of which is for this machine.
    compiled = [name for name in names if ".cpython-" in name and name.endswith(".so")]
    assert any(name.startswith("pydantic_core/") for name in compiled)
    assert all("cpython-313-aarch64" in name for name in compiled)
    assert any(name.startswith("optuna/") for name in names) == (kind == "suggest")
    # The version under test, and only the AWS services that functions call.
    assert any(name == f"botocore-{botocore.__version__}.dist-info/METADATA" for name in names)
    services = {text.split("/")[2] for text in names if re.match(r"botocore/data/[^/]+/", text)}
    assert services == SERVICES
    # AWS's limits for a direct upload and for the unpacked archive.
    assert archive.stat().st_size <= 50_000_000
    assert unpacked <= 250_000_000
