"""The settings of stacks for the proxy and the authorities of machines."""

import json
from pathlib import Path
from typing import Any

import pytest

from infra.aws.settings import parse_settings as parse_aws
from infra.gcp.settings import parse_settings as parse_gcp
from infra.machine_network import add_machine_network
from infra.stack_program import SettingsInvalid
from tests.emulators.company_authority import create_authority
from tests.unit.infra.test_infra_gcp_settings import LEAST as GCP
from tests.unit.infra.test_infra_settings import LEAST as AWS

CLOUDS: dict[str, Any] = {"aws": (parse_aws, AWS), "gcp": (parse_gcp, GCP)}
PROXY = {"https_proxy": "http://ada:canary-78@proxy:3128", "no_proxy": ".example"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("company") / "a"
    return create_authority(folder).certificate.read_text()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_settings_have_the_fields_of_pools(cloud: str, certificate: str) -> None:
    parse, least = CLOUDS[cloud]
    given = {"machineProxy": json.dumps(PROXY), "caCertificates": certificate}
    settings = parse("vision", {**least, **given})
    assert settings.machine_proxy == PROXY
    assert settings.ca_certificates == certificate
    assert "canary" not in repr(settings)


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    ("proxy", "fault"),
    [
        ("text", "expected a map like"),
        ('{"https_proxy": "https://ada:canary-78@proxy:1"}', "https_proxy: is not an address"),
        ('{"no_proxy": "http://x"}', "no_proxy: has an entry that is wrong"),
        ('{"proxy": "http://ada:canary-78@proxy:1"}', "proxy: is not a known field"),
    ],
)
def test_wrong_proxy_is_refused_without_the_value(cloud: str, proxy: str, fault: str) -> None:
    parse, least = CLOUDS[cloud]
    with pytest.raises(SettingsInvalid) as refused:
        parse("vision", {**least, "machineProxy": proxy})
    (problem,) = refused.value.problems
    assert problem.startswith('detcloud:machineProxy is "(a secret)": expected a map like')
    assert fault in problem
    assert "canary" not in problem


@pytest.mark.parametrize("cloud", CLOUDS)
def test_wrong_certificates_are_refused(cloud: str, certificate: str) -> None:
    parse, least = CLOUDS[cloud]
    with pytest.raises(SettingsInvalid, match=r"detcloud:caCertificates is .* expected certificat"):
        parse("vision", {**least, "caCertificates": certificate.replace("MII", "MIJ", 1)})


def test_pools_of_the_own_cloud_get_the_fields_that_they_lack() -> None:
    providers = [
        {"type": "aws"},
        {"type": "aws", "proxy": {}},
        {"type": "gcp"},
        {"type": "local"},
    ]
    pools = [{"pool_name": str(place), "provider": one} for place, one in enumerate(providers)]
    tree = {"resource_pools": [*pools, {"pool_name": "own machines"}, "malformed"]}
    completed = add_machine_network(tree, "aws", PROXY, "PEM")
    first, own, *others = completed["resource_pools"]
    assert first["provider"] == {"type": "aws", "proxy": PROXY, "ca_certificates": "PEM"}
    assert own["provider"] == {"type": "aws", "proxy": {}, "ca_certificates": "PEM"}
    assert others == tree["resource_pools"][2:]
    assert add_machine_network(tree, "aws", {}, "") is tree
