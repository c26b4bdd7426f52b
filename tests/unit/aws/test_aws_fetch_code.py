"""The scripts that fetch the agent's code with the keys of an instance's role."""

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from control_plane.agents.agent_code import agent_code, keep_agent_code
from control_plane.aws.instance_identity import AwsIdentityVerifier
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from infra.aws import policies
from infra.aws.names import Names
from infra.aws.policy_statements import make_document
from tests.emulators.ministack import ACCOUNT, REGION, Ministack
from tests.hostile.live_server import Live
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.api.cluster import NOW_MS, build_cluster, put_instance

BOOT = Path(__file__).parents[3] / "images/boot"
NAMES = Names("fetching", ACCOUNT, REGION)
ROLE = "metadata-role"


@pytest.fixture(scope="module")
def metadata(strict_aws: Ministack) -> Iterator[str]:
    """The URL of a metadata server, version 2, with keys of the stack's instance role."""
    s3, iam = strict_aws.client("s3"), strict_aws.client("iam")
    s3.create_bucket(Bucket=NAMES.objects)
    for key in ("agent-code/abc", "model-code/abc"):
        s3.put_object(Bucket=NAMES.objects, Key=key, Body=key.encode())
    root = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
    allow = {"Effect": "Allow", "Principal": root, "Action": "sts:AssumeRole"}
    trust = json.dumps(make_document(allow))
    name = NAMES.role("instance")
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    document = json.dumps(policies.instance(NAMES))
    iam.put_role_policy(RoleName=name, PolicyName="code", PolicyDocument=document)
    issued = strict_aws.client("sts").assume_role(RoleArn=role, RoleSessionName="i-1")
    keys = issued["Credentials"]
    credentials = {
        "AccessKeyId": keys["AccessKeyId"],
        "SecretAccessKey": keys["SecretAccessKey"],
        "Token": keys["SessionToken"],
    }
    place = "/latest/meta-data/iam/security-credentials/"
    pages = {place: ROLE, place + ROLE: json.dumps(credentials)}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._answer("token" if self.path == "/latest/api/token" else None)

        def do_GET(self) -> None:
            is_known = self.headers.get("X-aws-ec2-metadata-token") == "token"
            self._answer(pages.get(self.path) if is_known else None)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

        def _answer(self, text: str | None) -> None:
            self.send_response(404 if text is None else 200)
            self.end_headers()
            self.wfile.write((text or "").encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetch(aws: Ministack, metadata: str, key: str, path: Path) -> subprocess.CompletedProcess[str]:
    url = f"{aws.url}/{NAMES.objects}/{key}"
    return run_script("fetch_code.py", aws, metadata, url, REGION, str(path))


def run_script(
    name: str, aws: Ministack, metadata: str, *words: str
) -> subprocess.CompletedProcess[str]:
    # Without the sleeps a refusal ends the script at once; a real boot retries for half a minute.
    code = f"import runpy; runpy.run_path({str(BOOT / name)!r}, run_name='__main__')"
    sleepless = "import sys, time; time.sleep = lambda _: None\n"
    sleepless += f"sys.path.insert(0, {str(BOOT)!r})\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", sleepless + code, *words],
        env={
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata,
            "AWS_ENDPOINT_URL_STS": aws.url,
        },
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )


def test_instance_fetches_the_agents_code(
    strict_aws: Ministack, metadata: str, tmp_path: Path
) -> None:
    done = fetch(strict_aws, metadata, "agent-code/abc", tmp_path / "code")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "code").read_bytes() == b"agent-code/abc"


def test_instance_role_reads_only_the_agents_code(
    strict_aws: Ministack, metadata: str, tmp_path: Path
) -> None:
    done = fetch(strict_aws, metadata, "model-code/abc", tmp_path / "code")
    assert done.returncode == 1
    assert "could not be fetched from" in done.stdout
    assert not (tmp_path / "code").exists()
    with pytest.raises(urllib.error.HTTPError, match="HTTP Error 403"):
        urllib.request.urlopen(f"{strict_aws.url}/{NAMES.objects}/agent-code/abc")


def test_instance_of_a_cluster_elsewhere_gets_code_by_a_proof(
    strict_aws: Ministack, metadata: str, tmp_path: Path
) -> None:
    role = f"arn:aws:iam::{ACCOUNT}:role/{NAMES.role('instance')}"
    verifier = AwsIdentityVerifier("cluster-1", role, strict_aws.url)
    cluster = build_cluster(tmp_path / "cluster", verifiers={"aws": verifier})
    offering = Offering("g5/a/spot", "g5.xlarge", "a", Market.SPOT, 1)
    row = InstanceRow("i-1", "on-aws", offering, InstanceState.STARTING, NOW_MS, "intent-1")
    put_instance(cluster, row, "aws")
    keep_agent_code(cluster.objects)
    digest, live = agent_code().sha256, Live(cluster)
    live.start()
    try:

        def ask(name: str, pool: str) -> subprocess.CompletedProcess[str]:
            url = f"http://127.0.0.1:{live.port}/api/v1/instances/{name}/agent-code"
            arguments = (url, "cluster-1", pool, digest, REGION, str(tmp_path / name))
            return run_script("ask_for_code.py", strict_aws, metadata, *arguments)

        done = ask("i-1", "on-aws")
        assert done.returncode == 0, done.stdout + done.stderr
        assert (tmp_path / "i-1").read_bytes() == agent_code().content
        # An instance may only request code for the same instance, in the pool of the launch.
        assert "HTTP Error 403" in ask("i-2", "on-aws").stdout
        assert "HTTP Error 404" in ask("i-1", "default").stdout
    finally:
        live.stop()
