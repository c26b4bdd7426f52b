"""Containers of Azure beyond the conformance suites: blocks, lost answers, faults, credentials."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline.transport import RequestsTransport

from control_plane.checkpoint_stores.trial_storage import display_storage
from detcloud.shared.azure import RETRIES_MAX, AzureContainer
from detcloud.shared.azure_place import AzurePlace, is_azures_own
from detcloud.shared.bucket_errors import BucketError, NoSuchBucket, NoSuchKey, StoreBusy
from detcloud.storage import StorageError, build_store
from tests.emulators.azurite import ACCOUNT, KEY, Azurite

PART = 256 * 1024
LONG = b"".join(bytes([n]) * PART for n in range(5)) + b"rest"


@pytest.fixture
def place(azure: Azurite) -> AzurePlace:
    return AzurePlace(azure.new_container(), azure.connection_string)


Exchange = Callable[[], Any]
"""Sends a request and returns the answer. Each call sends the request again."""


class FaultyTransport(RequestsTransport):  # type: ignore[misc]
    """Connections to Azure with faults: `fault`, if any, answers all requests."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Callable[[Any, Exchange], Any] | None = None

    def send(self, request: Any, **options: Any) -> Any:
        exchange = partial(super().send, request, **options)
        return exchange() if self.fault is None else self.fault(request, exchange)


@pytest.fixture
def transport() -> FaultyTransport:
    return FaultyTransport()


@pytest.fixture
def container(place: AzurePlace, transport: FaultyTransport) -> AzureContainer:
    return AzureContainer(place, part_bytes=PART, transport=transport)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(LONG)
    return tmp_path / "source"


def is_block(request: Any) -> bool:
    """Whether a request sends a block."""
    return "comp=block&" in request.url


def is_commit(request: Any) -> bool:
    """Whether a request creates a blob from blocks."""
    return request.method == "PUT" and "comp=blocklist" in request.url


def note_blocks(transport: FaultyTransport) -> list[int]:
    """Return a list that receives the sizes of sent blocks."""
    sizes: list[int] = []

    def note(request: Any, exchange: Exchange) -> Any:
        if is_block(request):
            sizes.append(len(request.body))
        return exchange()

    transport.fault = note
    return sizes


def content(container: AzureContainer, key: str) -> bytes:
    size, blocks = container.open(key)
    whole = b"".join(blocks)
    assert len(whole) == size
    return whole


def test_azure_sends_long_content_in_blocks(
    container: AzureContainer, transport: FaultyTransport, source: Path, tmp_path: Path
) -> None:
    block_sizes = note_blocks(transport)
    assert container.send("k", source)
    # 1,310,724 bytes are five parts of 262,144 bytes and a part of 4 bytes.
    assert sorted(block_sizes) == [4, *[PART] * 5]
    assert content(container, "k") == LONG
    container.fetch("k", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == LONG
    assert not container.send("k", source)


def test_azure_sends_only_missing_blocks_after_a_crash(
    container: AzureContainer, transport: FaultyTransport, source: Path
) -> None:
    def crash(request: Any, exchange: Exchange) -> Any:
        if is_commit(request):
            raise KeyboardInterrupt
        return exchange()

    transport.fault = crash
    with pytest.raises(KeyboardInterrupt):
        container.send("k", source)
    block_sizes = note_blocks(transport)
    assert container.object_size("k") is None
    # The new content has the last five blocks in common with the old.
    source.write_bytes(b"!" * PART + LONG[PART:])
    assert container.send("k", source)
    assert block_sizes == [PART]
    assert content(container, "k") == source.read_bytes()


def test_one_of_two_azure_writers_wins_without_mixed_content(
    container: AzureContainer, transport: FaultyTransport, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").write_bytes(LONG[::-1])

    def commit_second(request: Any, exchange: Exchange) -> Any:
        if is_commit(request):
            transport.fault = None
            assert container.send("k", tmp_path / "other")
        return exchange()

    transport.fault = commit_second
    assert not container.send("k", source)
    assert content(container, "k") == LONG[::-1]


@pytest.mark.parametrize("size", [5, len(LONG)])
def test_azure_writer_wins_despite_a_lost_answer(
    container: AzureContainer, transport: FaultyTransport, source: Path, size: int
) -> None:
    def write_twice(request: Any, exchange: Exchange) -> Any:
        if request.method == "PUT" and not is_block(request):
            exchange()
        # The client's repeat gets this answer.
        return exchange()

    source.write_bytes(LONG[:size])
    transport.fault = write_twice
    assert container.send("k", source)
    transport.fault = None
    assert not container.send("k", source)


@pytest.mark.parametrize("size", [5, len(LONG)])
def test_azure_refuses_garbled_content(
    container: AzureContainer, transport: FaultyTransport, source: Path, size: int
) -> None:
    def garble(request: Any, exchange: Exchange) -> Any:
        if request.method == "PUT" and isinstance(request.body, bytes):
            request.set_bytes_body(b"?" + request.body[1:])
        return exchange()

    source.write_bytes(LONG[:size])
    transport.fault = garble
    with pytest.raises(BucketError, match=r"(?i)md5"):
        container.send("k", source)
    transport.fault = None
    assert container.object_size("k") is None


def test_azure_retries_temporary_failures_after_growing_pauses(
    container: AzureContainer, transport: FaultyTransport, source: Path, pauses: list[float]
) -> None:
    left = [3]

    def lose(request: Any, exchange: Exchange) -> Any:
        if left[0]:
            left[0] -= 1
            raise ServiceRequestError("lost")
        return exchange()

    transport.fault = lose
    source.write_bytes(b"x")
    assert container.send("k", source)
    # Full jitter: up to 0.2 s, 0.4 s and 0.8 s.
    assert len(pauses) == 3
    assert all(pause <= most for pause, most in zip(pauses, (0.2, 0.4, 0.8), strict=True))
    left[0] = 1000
    with pytest.raises(BucketError, match="lost"):
        container.object_size("k")
    assert len(pauses) == 3 + RETRIES_MAX


@pytest.mark.usefixtures("pauses")
def test_busy_azure_store_raises_store_busy(
    container: AzureContainer, transport: FaultyTransport, source: Path
) -> None:
    def refuse(request: Any, exchange: Exchange) -> Any:
        request.method = "HEAD"
        answer = exchange()
        answer.status_code, answer.headers["x-ms-error-code"] = 503, "ServerBusy"
        return answer

    assert container.send("k", source)
    transport.fault = refuse
    with pytest.raises(StoreBusy, match="503 ServerBusy"):
        container.delete("k")


def test_azure_error_names_the_missing_object_or_container(
    container: AzureContainer, place: AzurePlace, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(NoSuchKey, match="nothing under none"):
        container.fetch("none", tmp_path / "copy")
    nowhere = AzureContainer(replace(place, container="no-such-container"))
    with pytest.raises(NoSuchBucket, match="there is no container"):
        nowhere.send("k", source)
    with pytest.raises(NoSuchBucket, match="no-such-container"):
        nowhere.object_size("k")


def test_azure_account_is_reached_by_a_key_or_a_signature(
    azure: Azurite, place: AzurePlace, source: Path
) -> None:
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    by_key = {"container": place.container, "account_url": azure.url, "credential": KEY}
    store = build_store({"type": "azure", **by_key})
    store.put("k", source)
    signed = AzureContainer(AzurePlace(**by_key))
    assert signed.can_sign
    with urlopen(signed.signed_get_url("k", 60)) as answer:
        assert answer.read() == LONG
    token = generate_container_sas(
        ACCOUNT,
        place.container,
        account_key=KEY,
        permission=ContainerSasPermissions(read=True, list=True),
        expiry="2999-01-01T00:00:00Z",
    )
    reader = AzureContainer(AzurePlace(place.container, account_url=azure.url, credential=token))
    assert list(reader.list_objects("")) == [("k", len(LONG))]
    assert not reader.can_sign
    with pytest.raises(BucketError, match="does not allow that in this container"):
        reader.send("other", source)


@pytest.mark.parametrize("key", ["c2VjcmV0", "not base64"])
def test_azure_error_contains_no_wrong_key(
    azure: Azurite, place: AzurePlace, source: Path, key: str
) -> None:
    storage = {"type": "azure", "container": place.container}
    wrong = {**storage, "account_url": azure.url, "credential": key}
    with pytest.raises(StorageError) as refused:
        build_store(wrong).put("k", source)
    assert key not in str(refused.value)
    wrong = {**storage, "connection_string": azure.connection_string.replace(KEY, key)}
    with pytest.raises(StorageError) as refused:
        build_store(wrong).put("k", source)
    assert key not in str(refused.value)
    assert display_storage(wrong) == f"{azure.url}/{place.container}"


def test_machine_identity_is_used_at_azures_endpoints_only() -> None:
    with pytest.raises(BucketError, match="set a credential for it"):
        AzureContainer(AzurePlace("c", account_url="https://store.test"))
    assert is_azures_own("https://team.blob.core.windows.net")
    for url in (
        "http://team.blob.core.windows.net",
        "https://team.blob.core.windows.net.evil.test",
        "https://evil.test/.blob.core.windows.net",
        "https://team.blob.core.windows.net@evil.test",
    ):
        assert not is_azures_own(url)


@pytest.mark.parametrize(
    ("connection_string", "endpoint"),
    [
        (f"AccountName=a;AccountKey={KEY}", "https://a.blob.core.windows.net"),
        (
            "DefaultEndpointsProtocol=http;AccountName=a;EndpointSuffix=s.test",
            "http://a.blob.s.test",
        ),
        ("BlobEndpoint=https://h.test:8/a?sig=canary;AccountName=b", "https://h.test:8/a"),
        # The account name cannot redirect to another host, however a parser reads the text.
        ("DefaultEndpointsProtocol=http;AccountName=10.0.0.1/x?", "http://10.0.0.1/x"),
        ("x", ""),
    ],
)
def test_endpoint_of_a_connection_string_contains_no_secret(
    connection_string: str, endpoint: str
) -> None:
    assert AzurePlace("c", connection_string).endpoint == endpoint


@pytest.mark.parametrize(
    ("connection_string", "problem"),
    [
        ("canary", "names no AccountName and no BlobEndpoint"),
        ("AccountName=a;Canary=canary", "neither AccountName and AccountKey nor"),
        ("BlobEndpoint=https://h.test/a;AccountKey=canary", "neither AccountName and AccountKey"),
    ],
)
def test_error_of_an_invalid_connection_string_does_not_quote_the_string(
    connection_string: str, problem: str
) -> None:
    with pytest.raises(BucketError, match=problem) as refused:
        AzureContainer(AzurePlace("c", connection_string))
    assert "canary" not in str(refused.value)


def test_connection_string_may_have_a_signature() -> None:
    text = "BlobEndpoint=https://h.test/a;SharedAccessSignature=sv=1&sig=abc"
    assert AzurePlace("c", text).key == "sv=1&sig=abc"
    assert not AzureContainer(AzurePlace("c", text)).can_sign
