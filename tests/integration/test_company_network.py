"""Clients in a company's network: a proxy with a login, and certificates of its own authority."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.certificates import BUNDLE_VARIABLES, complete_environment
from detcloud.shared.http import Transport, Unreachable, WayClosed
from detcloud.shared.webhdfs_client import WebHdfsClient
from tests.conftest import require
from tests.emulators.azurite import ACCOUNT, Azurite
from tests.emulators.company_network import LOGIN, PASSWORD, CompanyNetwork, company_network
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.seaweedfs import SeaweedFs
from tests.emulators.webhdfs import OWNER, webhdfs
from tests.integration.agent_cluster import FakeCluster
from tests.integration.agent_process import LEAVE, PRELUDE, AgentProcess
from tests.integration.trial_node import SECONDS_MAX
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

CONTENT = b"checkpoint"
TRIALS = ("4.1", "5.1")
SECRETS = (PASSWORD, LOGIN.partition(":")[2])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompanyNetwork]:
    with company_network(tmp_path_factory.mktemp("company")) as started:
        yield started


@pytest.fixture
def company(
    network: CompanyNetwork, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CompanyNetwork:
    """Return the network, with this process in it."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    for name in (*names, *BUNDLE_VARIABLES, *map(str.lower, names)):
        # The test's end restores the variables that clients complete.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in network.variables.items():
        monkeypatch.setenv(name, value)
    return network


class Answers(BaseHTTPRequestHandler):
    """A cluster that answers each request with its token."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        content = json.dumps({"token": self.headers.get("Authorization")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def plain_port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def cluster_url(network: CompanyNetwork, plain_port: int) -> Iterator[str]:
    with network.front("cluster.test", plain_port) as url:
        yield url


def ask(url: str, **options: float) -> object:
    client = Transport(url, "secret", **options)  # type: ignore[arg-type]
    try:
        return client.request("GET", "/x")
    finally:
        client.close()


def failure(url: str) -> str:
    """Return the message of a request that is not repeated, without secrets."""
    with pytest.raises(WayClosed) as error:
        ask(url, attempts_seconds_max=600)
    text = str(error.value)
    assert not [secret for secret in SECRETS if secret in text]
    return text


def test_proxy_with_login_and_own_authority(company: CompanyNetwork, cluster_url: str) -> None:
    assert ask(cluster_url) == {"token": "Bearer secret"}


def test_plain_request_through_a_proxy_with_login(company: CompanyNetwork, plain_port: int) -> None:
    assert ask(f"http://cluster.test:{plain_port}") == {"token": "Bearer secret"}


def test_refused_login_names_the_proxy_and_the_remedy(
    company: CompanyNetwork, cluster_url: str, plain_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = f"http://ada:{PASSWORD[:6]}@{company.place}"
    monkeypatch.setenv("HTTPS_PROXY", wrong)
    monkeypatch.setenv("HTTP_PROXY", f"http://{company.place}")
    assert failure(cluster_url) == (
        f"{cluster_url} could not be reached through the proxy http://{company.place}: the proxy "
        "refuses the user or password (407); set HTTPS_PROXY to http://HOST:PORT, or "
        "http://USER:PASSWORD@HOST:PORT with special characters as %XX"
    )
    plain = failure(f"http://cluster.test:{plain_port}")
    assert "the proxy requires a user and password (407); set HTTP_PROXY to http://HOST:" in plain


def test_unknown_authority_names_the_setting(
    company: CompanyNetwork, cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DETCLOUD_CA_FILE")
    text = failure(cluster_url)
    assert text.startswith(
        f"{cluster_url} could not be reached through the proxy http://{company}"[:50]
    )
    assert "its certificate is not accepted: unable to get local issuer certificate" in text
    assert "set DETCLOUD_CA_FILE to the file with its certificate" in text
    monkeypatch.setenv("DET_MASTER_CERT_FILE", "noverify")
    assert "; DET_MASTER_CERT_FILE=noverify names no file" in failure(cluster_url)


def test_determineds_variable_names_the_authority_too(
    company: CompanyNetwork, cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DETCLOUD_CA_FILE")
    monkeypatch.setenv("DET_MASTER_CERT_FILE", str(company.authority.certificate))
    assert ask(cluster_url) == {"token": "Bearer secret"}


def test_own_authority_does_not_replace_the_systems(
    company: CompanyNetwork, cluster_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The company's authority is the system's, and another one is added.
    monkeypatch.setenv("SSL_CERT_FILE", str(company.authority.certificate))
    other = tmp_path / "other.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=other", "-keyout", tmp_path / "other.key", "-out", other),
        ],
        check=True,
        capture_output=True,
    )
    monkeypatch.setenv("DETCLOUD_CA_FILE", str(other))
    assert ask(cluster_url) == {"token": "Bearer secret"}


def test_proxy_that_does_not_answer_is_named(
    company: CompanyNetwork, cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://{LOGIN}@127.0.0.1:9")
    with pytest.raises(Unreachable, match=r"through the proxy http://127\.0\.0\.1:9: ") as error:
        ask(cluster_url, attempts_max=1)
    assert not [secret for secret in SECRETS if secret in str(error.value)]


def test_command_uses_proxy_and_authority(company: CompanyNetwork, cluster_url: str) -> None:
    code = "import sys; from detcloud.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "--url", cluster_url, "--json", "version"]
    environment = {**os.environ, "DETCLOUD_TOKEN": "t"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert "could not be reached" not in done.stdout + done.stderr


def test_s3_checkpoints_pass_the_proxy(company: CompanyNetwork, s3: SeaweedFs) -> None:
    from detcloud.shared.s3 import Bucket

    place = s3.place()
    port = int(str(place.endpoint_url).rpartition(":")[2])
    with company.front("s3.test", port) as url:
        bucket = Bucket(replace(place, endpoint_url=url))
        bucket.write("a", [CONTENT])
        assert b"".join(bucket.read("a")) == CONTENT


def test_s3_on_this_machine_and_in_excepted_networks_is_direct(
    company: CompanyNetwork, s3: SeaweedFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No proxy listens on port 9.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    bucket = s3.bucket()
    bucket.write("a", [CONTENT])
    assert b"".join(bucket.read("a")) == CONTENT


def test_s3_failures_name_the_proxy(
    company: CompanyNetwork, s3: SeaweedFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detcloud.shared import s3_client
    from detcloud.shared.s3 import Bucket

    monkeypatch.setattr(s3_client, "ATTEMPTS_MAX", 1)
    monkeypatch.setenv("HTTPS_PROXY", f"http://ada:wrong-canary@{company.place}")
    bucket = Bucket(replace(s3.place(), endpoint_url="https://s3.test:1"))
    with pytest.raises(BucketError, match=r"refuses the user or password \(407\)") as error:
        bucket.object_size("a")
    assert f"the proxy http://{company.place}" in str(error.value)
    assert "wrong-canary" not in str(error.value)


def test_gcs_checkpoints_pass_the_proxy(
    company: CompanyNetwork, gcs_server: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.auth.credentials import AnonymousCredentials

    from detcloud.shared.gcs import GcsBucket

    name = gcs_server.new_bucket()
    with company.front("gcs.test", int(gcs_server.url.rpartition(":")[2])) as url:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        bucket = GcsBucket(name, "", AnonymousCredentials())
        bucket.write("a", [CONTENT])
        assert b"".join(bucket.read("a")) == CONTENT


def test_azure_checkpoints_pass_the_proxy(
    company: CompanyNetwork, azure: Azurite, tmp_path: Path
) -> None:
    from detcloud.shared.azure import AzureContainer
    from detcloud.shared.azure_place import AzurePlace

    address = azure.connection_string.partition("BlobEndpoint=")[2].partition(";")[0]
    port = int(address.split(":")[2].partition("/")[0])
    # The emulator reads the account's name from the host, as Azure does.
    with company.front(f"{ACCOUNT}.test", port) as url:
        text = azure.connection_string.replace(address, url)
        container = AzureContainer(AzurePlace(azure.new_container(), text))
        source, copy = tmp_path / "source", tmp_path / "copy"
        source.write_bytes(CONTENT)
        container.send("a", source)
        container.fetch("a", copy)
        assert copy.read_bytes() == CONTENT


def test_webhdfs_checkpoints_pass_the_proxy(
    company: CompanyNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhdfs(namenodes=1, datanodes=1) as hdfs:
        port = int(hdfs.url.rpartition(":")[2])
        client = WebHdfsClient([f"http://namenode.test:{port}"], OWNER)
        assert client.ask("PUT", "/folder", "MKDIRS") == {"boolean": True}
        monkeypatch.setenv("HTTP_PROXY", f"http://{company.place}")
        # A refused login is not repeated.
        with pytest.raises(BucketError, match="requires a user and password"):
            client.ask("PUT", "/folder", "MKDIRS")


def test_pip_and_curl_pass_the_proxy(company: CompanyNetwork, tmp_path: Path) -> None:
    (tmp_path / "packages/simple/nothing").mkdir(parents=True)

    class Files(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(tmp_path / "packages") + path

        def log_message(self, *_: object) -> None:
            pass

    environment = dict(os.environ)
    complete_environment(environment, tmp_path)
    # Programs need no variable of detcloud.
    del environment["DETCLOUD_CA_FILE"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with company.front("packages.test", server.server_port) as url:
            index = ("--index-url", f"{url}/simple", "--disable-pip-version-check", "--retries=0")
            pip = [sys.executable, "-m", "pip", "index", "versions", "nothing", *index, "-v"]
            curl = ["curl", "-sS", "--fail", "--output", str(tmp_path / "x"), f"{url}/simple/"]
            found, loaded = (
                subprocess.run(
                    words,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=PROCESS_SECONDS_MAX,
                    check=False,
                )
                for words in (pip, curl)
            )
        server.shutdown()
    # pip reaches the index, which has no versions.
    assert "No matching distribution" in found.stderr, found
    assert "certificate" not in found.stdout + found.stderr
    assert loaded.returncode == 0, loaded.stderr


def test_clients_of_deploy_commands_pass_the_proxy(
    company: CompanyNetwork, cluster_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require("boto3")
    requests = require("requests")
    from botocore.config import Config
    from botocore.exceptions import ClientError, ParamValidationError
    from botocore.parsers import ResponseParserError

    from detcloud.shared.aws import new_session

    complete_environment(os.environ, tmp_path)
    session = new_session()
    session.set_credentials("a", "b")
    config = Config(retries={"total_max_attempts": 1})
    client = session.create_client("sts", "us-east-1", endpoint_url=cluster_url, config=config)
    with pytest.raises((ClientError, ResponseParserError, ParamValidationError)):
        client.get_caller_identity()
    assert requests.get(cluster_url, timeout=10).status_code == 200


WRITE_VARIABLES = """
with open("{path}", "w") as file:
    json.dump(dict(os.environ), file)
"""


def test_agent_and_trials_use_proxy_and_authority(
    company: CompanyNetwork, cluster: FakeCluster, tmp_path: Path
) -> None:
    own = ["HTTPS_PROXY=http://own.test:1", "AWS_CA_BUNDLE=/own.pem", "NO_PROXY=own.test"]
    config = {"environment": {"environment_variables": own}}
    programs = {name: WRITE_VARIABLES.format(path=tmp_path / name) + LEAVE for name in TRIALS}
    cluster.assign("4.1", PRELUDE + programs["4.1"])
    cluster.assign("5.1", PRELUDE + programs["5.1"], environment_variables=own, config=config)
    port = int(cluster.url.rpartition(":")[2])
    with company.front("cluster.test", port) as url:
        agent = AgentProcess(tmp_path / "work", url)
        try:
            agent.start()
            wait_until(
                lambda: cluster.exit_record("4.1") and cluster.exit_record("5.1"), SECONDS_MAX
            )
        finally:
            agent.end()
    log = agent.errors.read_text()
    assert not [secret for secret in SECRETS if secret in log]
    plain, chosen = (json.loads((tmp_path / name).read_text()) for name in TRIALS)
    assert plain["HTTPS_PROXY"] == plain["https_proxy"] == company.proxy
    assert {"169.254.169.254", "localhost"} <= set(plain["no_proxy"].split(","))
    assert plain["REQUESTS_CA_BUNDLE"] == plain["PIP_CERT"]
    bundle = Path(plain["REQUESTS_CA_BUNDLE"]).read_text()
    assert company.authority.certificate.read_text() in bundle
    # The user's variables win, in both cases.
    assert chosen["HTTPS_PROXY"] == chosen["https_proxy"] == "http://own.test:1"
    assert chosen["HTTP_PROXY"] == company.proxy
    assert chosen["AWS_CA_BUNDLE"] == "/own.pem"
    assert {"own.test", "metadata.google.internal"} <= set(chosen["NO_PROXY"].split(","))
