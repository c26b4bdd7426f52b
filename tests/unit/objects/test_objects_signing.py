from dataclasses import replace

import pytest

from control_plane.objects.signing import VALIDITY_MS_MAX, Grant, HmacUrlSigner, InvalidSignature
from control_plane.objects.store import ObjectKey

NOW_MS = 1_800_000_000_000
SIGNER = HmacUrlSigner(b"s" * 32)
GRANT = Grant("PUT", ObjectKey("logs/1/a b"), 3, "ab" * 32, NOW_MS + VALIDITY_MS_MAX)


def test_accepts_valid_signature() -> None:
    SIGNER.verify(GRANT, SIGNER.signature(GRANT), NOW_MS)


@pytest.mark.parametrize(
    "altered",
    [
        replace(GRANT, method="GET"),
        replace(GRANT, key=ObjectKey("logs/1/b")),
        replace(GRANT, size=4),
        replace(GRANT, size=None),
        replace(GRANT, sha256="cd" * 32),
        replace(GRANT, sha256=None),
        replace(GRANT, expires_ms=GRANT.expires_ms - 1),
    ],
)
def test_signature_covers_all_parts_of_a_grant(altered: Grant) -> None:
    with pytest.raises(InvalidSignature, match="does not match"):
        SIGNER.verify(altered, SIGNER.signature(GRANT), NOW_MS)


@pytest.mark.parametrize("signature", ["", "0" * 64, "é", "\udcff"])
def test_rejects_invalid_signatures(signature: str) -> None:
    with pytest.raises(InvalidSignature, match="does not match"):
        SIGNER.verify(GRANT, signature, NOW_MS)


def test_rejects_signature_with_a_different_secret() -> None:
    with pytest.raises(InvalidSignature):
        SIGNER.verify(GRANT, HmacUrlSigner(b"t" * 32).signature(GRANT), NOW_MS)


@pytest.mark.parametrize(
    ("expires_ms", "accepted"),
    [
        (NOW_MS - 1, False),
        (NOW_MS, False),
        (NOW_MS + 1, True),
        (NOW_MS + VALIDITY_MS_MAX, True),
        (NOW_MS + VALIDITY_MS_MAX + 1, False),
    ],
)
def test_signature_expires_within_the_maximum_validity(expires_ms: int, accepted: bool) -> None:
    grant = replace(GRANT, expires_ms=expires_ms)
    if accepted:
        SIGNER.verify(grant, SIGNER.signature(grant), NOW_MS)
        return
    with pytest.raises(InvalidSignature, match="expired"):
        SIGNER.verify(grant, SIGNER.signature(grant), NOW_MS)


def test_signed_put_has_length_and_digest() -> None:
    signed = SIGNER.sign("PUT", GRANT.key, size=3, sha256="ab" * 32, expires_ms=GRANT.expires_ms)
    path, _, query = signed.url.partition("?")
    assert path == "/api/v1/objects/logs/1/a%20b"
    assert query == (
        f"expires_ms={GRANT.expires_ms}&size=3&sha256={'ab' * 32}"
        f"&signature={SIGNER.signature(GRANT)}"
    )
    assert signed.headers == {"Content-Length": "3"}


def test_put_without_length_or_digest_is_not_signed() -> None:
    for size, sha256 in ((None, "ab" * 32), (3, None)):
        with pytest.raises(ValueError, match="logs/1"):
            SIGNER.sign("PUT", GRANT.key, size=size, sha256=sha256, expires_ms=NOW_MS)


def test_rejects_short_secret() -> None:
    with pytest.raises(ValueError, match="31 bytes"):
        HmacUrlSigner(b"s" * 31)
