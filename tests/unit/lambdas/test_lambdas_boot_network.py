"""Boots of machines whose pool has a proxy with a login and authorities of its own.

The whole boot script runs on a stub machine. Its cluster is behind a real proxy.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from lambdas.aws.boot import user_data
from lambdas.boot_network import network_commands
from provisioner.clouds.aws.launch_request import USER_DATA_BYTES_MAX
from provisioner.clouds.provider import ConfigurationError
from tests.emulators.company_network import LOGIN, PASSWORD, CompanyNetwork, company_network
from tests.emulators.stub_machine import StubMachine
from tests.unit.lambdas.test_lambdas_boot import CLUSTER, PLACE, REQUEST, URL
from tests.unit.lambdas.test_lambdas_broken_boots import GPUS, Scene, cloud_server

SECRETS = (PASSWORD, LOGIN.partition(":")[2])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompanyNetwork]:
    with company_network(tmp_path_factory.mktemp("company")) as started:
        yield started


@pytest.fixture(params=["aws", "gcp"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    made = Scene(request.param, StubMachine(tmp_path_factory.mktemp("machine")))
    made.machine.add_gpus(GPUS)
    return made


@contextmanager
def company_cloud(scene: Scene, network: CompanyNetwork) -> Iterator[str]:
    """Serve the scene's cluster and bucket behind the network's proxy; yield the URL."""
    with cloud_server(scene) as plain:
        # The proxy cannot reach the metadata service.
        scene.environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = plain
        with network.front("cluster.test", urlsplit(plain).port or 0) as url:
            scene.url = url
            yield url


def section(network: CompanyNetwork, **proxy: str) -> dict[str, object]:
    addresses = {"https_proxy": network.proxy, "http_proxy": network.proxy, **proxy}
    certificates = network.authority.certificate.read_text()
    return {"proxy": addresses, "ca_certificates": certificates}


def test_machine_boots_through_the_proxy_and_gives_it_to_its_services(
    scene: Scene, network: CompanyNetwork
) -> None:
    scene.section = section(network, no_proxy=".internal.example")
    with company_cloud(scene, network) as url:
        status = scene.boot(url)
    machine, root = scene.machine, scene.machine.root
    assert status == 0, machine.log
    settings = root / "etc/detcloud/machine.env"
    assert settings.stat().st_mode & 0o777 == 0o600
    assert f"HTTPS_PROXY='{network.proxy}'\n" in settings.read_text()
    assert "no_proxy='.internal.example,localhost,127.0.0.1,::1,169.254.169.254," in (
        settings.read_text()
    )
    authorities = root / "etc/detcloud/authorities.pem"
    assert authorities.read_text() == network.authority.certificate.read_text()
    assert f"DETCLOUD_CA_FILE='{authorities}'\n" in settings.read_text()
    units = root / "etc/systemd/system"
    line = f"[Service]\nEnvironmentFile={settings}\n"
    assert (units / "docker.service.d/detcloud.conf").read_text() == line
    assert f"EnvironmentFile=-{settings}\n" in (units / "detcloud-agent.service").read_text()
    # Docker starts with the variables.
    reloads = [place for place, text in enumerate(machine.commands) if "daemon-reload" in text]
    assert machine.commands.index("systemctl restart docker") > reloads[1]
    # No other user sees the password: neither in arguments and logs, nor in readable files.
    readable = [
        path.read_text(errors="replace")
        for path in (root / "etc").rglob("*")
        if path.is_file() and path.stat().st_mode & 0o044
    ]
    for secret in SECRETS:
        assert secret not in "\n".join([*machine.commands, machine.log, *readable])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("password", "does not accept its user and password for cluster.test (407)"),
        ("authority", "add the certificate of its authority to provider.ca_certificates"),
        ("address", "check the pool's proxy http://127.0.0.1:9, and the way to it"),
        ("name", "correct http://proxy.invalid:1 in provider.proxy of the pool"),
        ("expired", "certificate 1 of provider.ca_certificates has expired or is damaged"),
        ("no store", "the certificates of provider.ca_certificates could not be installed"),
    ],
)
def test_boot_behind_a_broken_proxy_ends_with_the_reason(
    scene: Scene, network: CompanyNetwork, fault: str, reason: str
) -> None:
    addresses = {
        "password": f"http://ada:wrong-{PASSWORD[:6]}@{network.place}",
        "address": f"http://{LOGIN}@127.0.0.1:9",
        "name": f"http://{LOGIN}@proxy.invalid:1",
    }
    scene.section = section(network, https_proxy=addresses.get(fault, network.proxy))
    if fault == "authority":
        del scene.section["ca_certificates"]
    if fault == "expired":
        scene.machine.programs["openssl"] = "exit 1"
    if fault == "no store":
        scene.machine.programs["update-ca-certificates"] = "exit 1"
    with company_cloud(scene, network) as url:
        status = scene.boot(url)
    assert status != 0
    log = scene.machine.log
    [last] = [line for line in log.splitlines() if line.startswith("detcloud: the boot failed: ")]
    assert reason in last
    assert not [secret for secret in (*SECRETS, "wrong-") if secret in log]


def test_pool_without_proxy_and_authorities_has_no_commands() -> None:
    empty = {"proxy": {"http_proxy": "", "no_proxy": ".a"}, "ca_certificates": ""}
    assert network_commands({}) == network_commands(empty) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"proxy": {"http_proxy": "http://a'; reboot; '@h:1"}},
        {"proxy": {"http_proxy": "http://a\nINPUT\nreboot"}},
        {"proxy": {"http_proxy": "http://h:1", "no_proxy": "$(reboot)"}},
        {"ca_certificates": "a'\\"},
    ],
)
def test_stored_values_with_shell_syntax_are_refused_without_the_value(
    fields: dict[str, object],
) -> None:
    with pytest.raises(ConfigurationError, match=r"^provider\.(proxy|ca_certificates)") as error:
        network_commands(fields)
    assert "reboot; " not in str(error.value)


def test_certificates_of_three_authorities_fit_into_user_data() -> None:
    # A certificate with a key of 4,096 bits has about 2,000 characters.
    noise = base64.b64encode(hashlib.shake_256(b"key").digest(1_450)).decode()
    block = f"-----BEGIN CERTIFICATE-----\n{noise}\n-----END CERTIFICATE-----\n"
    proxy = {"https_proxy": "http://u:p@proxy.example:3128"}
    fields = {"proxy": proxy, "ca_certificates": 3 * block}
    request = replace(REQUEST, section=json.dumps(fields))
    made = user_data(URL, CLUSTER, PLACE)(request)
    assert len(made) <= 14 * 1024 < USER_DATA_BYTES_MAX
    assert b"trust_authorities <<'INPUT'" in gzip.decompress(made)
