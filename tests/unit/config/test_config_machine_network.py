"""The proxy and the authorities of a pool's machines: checks, masks and fields of deployments."""

import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.config.machine_network import CERTIFICATES_CHARACTERS_MAX
from control_plane.config.pools import check_cluster, check_pool
from control_plane.config.problems import ConfigInvalid
from detcloud.shared.masking import MASK
from tests.emulators.company_authority import create_authority

CANARY = "canary-77"
PROXY = f"http://ada:{CANARY}@proxy.example:3128"
PAGE = Path(__file__).resolve().parents[3] / "docs/proxies.md"
ONE_POOL = (
    "resource_manager: {default_aux_resource_pool: gpus, default_compute_resource_pool: gpus}"
)
PROVIDERS = {"aws": {"instance_type": "g4dn.xlarge"}, "gcp": {"zone": "us-central1-a"}}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("company") / "a"
    return create_authority(folder).certificate.read_text()


def cluster_text(cloud: str = "aws", **fields: Any) -> str:
    provider = {"type": cloud, **PROVIDERS[cloud], **fields}
    return json.dumps({"resource_pools": [{"pool_name": "default", "provider": provider}]})


def problems(**fields: Any) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(cluster_text(**fields))
    found = [problem.text("f") for problem in caught.value.problems]
    assert not [text for text in found if CANARY in text]
    return found


@pytest.mark.parametrize("cloud", PROVIDERS)
def test_login_of_the_proxy_is_shown_masked_and_launched_with(cloud: str, certificate: str) -> None:
    fields = {"https_proxy": PROXY, "no_proxy": ".example, 10.0.0.0/8"}
    text = cluster_text(cloud, proxy=fields, ca_certificates=f"comment\n{certificate}")
    (pool,) = check_cluster(text).resource_pools
    assert pool.provider is not None
    launched = json.loads(pool.provider.to_json())
    assert launched["proxy"] == {"http_proxy": "", **fields}
    # Comments between certificates need room in the boot script.
    assert launched["ca_certificates"] == certificate
    shown = check_cluster(text).masked_values()["resource_pools"][0]["provider"]
    assert shown["proxy"]["https_proxy"] == f"http://{MASK}@proxy.example:3128"
    assert CANARY not in repr(shown)


@pytest.mark.parametrize(
    "address",
    [
        *("https://proxy:1", "socks5://proxy:1", "proxy:99999", "http://", 5, ["x"]),
        *(f"http://ada:{CANARY}/@proxy:1", f"http://ada:{CANARY}'@proxy:1", "http://a b@proxy:1"),
        # A login without a scheme would not be masked.
        f"ada:{CANARY}@proxy:1",
    ],
)
def test_address_is_refused_where_it_is_set_without_its_value(address: object) -> None:
    (text,) = problems(proxy={"http_proxy": address})
    assert "resource_pools[0].provider.proxy.http_proxy: " in text
    assert "http://HOST:PORT" in text


def test_wrong_exception_is_refused_where_it_is_set() -> None:
    (text,) = problems(proxy={"no_proxy": "ok.example,http://other"})
    assert "provider.proxy.no_proxy: has an entry that is wrong: 'http://other' is no host" in text


def test_example_of_the_page_is_valid(certificate: str) -> None:
    text = PAGE.read_text().partition("```yaml\n")[2].partition("```")[0]
    lines = [f"        {line}" for line in certificate.splitlines()]
    start = text.index("        -----BEGIN")
    (pool,) = check_cluster(f"{text[:start]}{chr(10).join(lines)}\n{ONE_POOL}").resource_pools
    assert pool.provider is not None
    assert json.loads(pool.provider.to_json())["ca_certificates"] == certificate


def test_masked_login_is_refused() -> None:
    (text,) = problems(proxy={"http_proxy": f"http://{MASK}@proxy.example:1"})
    assert "is the mask of a hidden value" in text


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda text: "text", "must be certificates"),
        (lambda text: 5, "must be a string"),
        (lambda text: text.replace("END CERT", "END"), "must be certificates"),
        (lambda text: text.replace("MII", "MIJ", 1), "has a damaged certificate, number 1"),
        (lambda text: "\n".join(text.splitlines()[:3] + text.splitlines()[-1:]), "damaged"),
        (lambda text: text + text.replace("CERTIFICATE", "PRIVATE KEY"), "a private key"),
        (lambda text: text * 9, f"a boot script has room for {CERTIFICATES_CHARACTERS_MAX}"),
    ],
)
def test_wrong_certificates_are_refused_with_a_remedy(
    certificate: str, change: Any, fault: str
) -> None:
    (text,) = problems(ca_certificates=change(certificate))
    assert "resource_pools[0].provider.ca_certificates: " in text
    assert fault in text
    assert "write " in text


def test_new_fields_of_a_pool_keep_the_deployed_proxy(certificate: str) -> None:
    text = cluster_text(proxy={"https_proxy": PROXY}, ca_certificates=certificate)
    (present,) = check_cluster(text).resource_pools
    same = {"provider": {"type": "aws", **PROVIDERS["aws"], "max_instances": 3}}
    kept = check_pool("default", json.dumps(same), [], present).provider
    assert kept is not None
    launched = json.loads(kept.to_json())
    assert launched["proxy"]["https_proxy"] == PROXY
    assert launched["ca_certificates"] == certificate
    none = {"provider": {**same["provider"], "proxy": {}}}
    removed = check_pool("default", json.dumps(none), [], present).provider
    assert removed is not None
    assert json.loads(removed.to_json())["proxy"]["https_proxy"] == ""
