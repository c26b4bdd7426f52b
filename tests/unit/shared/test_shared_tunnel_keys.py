"""The keys of tunnels: certificates that OpenSSL accepts, and no other peer."""

from __future__ import annotations

import base64
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from hypothesis import given, settings
from hypothesis import strategies as st

from detcloud.shared.tunnel.certificate_text import decode_certificate
from detcloud.shared.tunnel.elliptic_curve import ORDER, public_point
from detcloud.shared.tunnel.keys import SecureChannel, TunnelKey, make_key

_KEYS = (make_key(), make_key())


def exchange(user: SecureChannel, agent: SecureChannel) -> None:
    """Pass all pending bytes between the ends."""
    while True:
        forth, back = user.pending(), agent.pending()
        if not forth and not back:
            return
        agent.receive(forth)
        user.receive(back)


def exchange_and_read(user: SecureChannel, agent: SecureChannel) -> None:
    """Pass all pending bytes, and read at each end."""
    exchange(user, agent)
    user.read()
    agent.read()


def open_channels(
    user: TunnelKey, agent: TunnelKey, user_expects: TunnelKey, agent_expects: TunnelKey
) -> tuple[SecureChannel, SecureChannel]:
    return (
        SecureChannel(user, user_expects.certificate, is_agent=False),
        SecureChannel(agent, agent_expects.certificate, is_agent=True),
    )


def test_certificate_is_signed_by_its_own_key() -> None:
    certificate = x509.load_der_x509_certificate(decode_certificate(make_key().certificate))
    key = certificate.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)
    key.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(SHA256()))
    assert certificate.serial_number > 0


@given(secret=st.integers(1, ORDER - 1) | st.sampled_from((1, 2, 3, ORDER - 1, ORDER - 2)))
@settings(max_examples=30, deadline=None)
def test_public_points_equal_those_of_openssl(secret: int) -> None:
    numbers = ec.derive_private_key(secret, ec.SECP256R1()).public_key().public_numbers()
    assert public_point(secret) == (numbers.x, numbers.y)


def test_expected_ends_exchange_bytes() -> None:
    user_key, agent_key = make_key(), make_key()
    user, agent = open_channels(user_key, agent_key, agent_key, user_key)
    exchange(user, agent)
    assert user.is_established
    assert agent.is_established
    user.write(b"x" * 100_000)
    exchange(user, agent)
    assert bytes(agent.read()) == b"x" * 100_000
    assert not agent.read()


@given(
    cuts=st.lists(st.integers(0, 110_000), max_size=10), reads=st.lists(st.booleans(), min_size=11)
)
@settings(max_examples=20, deadline=None)
def test_bytes_survive_any_division(cuts: list[int], reads: list[bool]) -> None:
    user, agent = open_channels(*_KEYS, _KEYS[1], _KEYS[0])
    exchange(user, agent)
    content = b"".join(number.to_bytes(4) for number in range(25_000))
    user.write(content)
    sent, before, found = user.pending(), 0, b""
    for cut, has_read in zip([*sorted(cuts), len(sent)], reads, strict=False):
        agent.receive(sent[before:cut])
        before = max(before, cut)
        found += bytes(agent.read()) if has_read else b""
    agent.receive(sent[before:])
    assert found + bytes(agent.read()) == content


@pytest.mark.parametrize("impostor", ["user", "agent"])
def test_other_keys_are_refused(impostor: str) -> None:
    user_key, agent_key, other = make_key(), make_key(), make_key()
    expected = (agent_key, user_key)
    keys = (other, agent_key) if impostor == "user" else (user_key, other)
    user, agent = open_channels(*keys, *expected)
    with pytest.raises(ssl.SSLError):
        exchange_and_read(user, agent)


def test_manipulated_bytes_are_refused() -> None:
    user_key, agent_key = make_key(), make_key()
    user, agent = open_channels(user_key, agent_key, agent_key, user_key)
    exchange(user, agent)
    user.write(b"secret")
    sent = bytearray(user.pending())
    assert b"secret" not in sent
    sent[-1] ^= 1
    agent.receive(bytes(sent))
    with pytest.raises(ssl.SSLError):
        agent.read()


def test_secret_is_not_shown() -> None:
    assert "PRIVATE" not in repr(make_key())


@pytest.mark.parametrize("text", ["", "?", base64.b64encode(bytes(1_025)).decode()])
def test_invalid_certificate_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="certificate of a tunnel"):
        decode_certificate(text)


def test_certificates_of_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="other end is invalid"):
        SecureChannel(make_key(), base64.b64encode(b"noise").decode(), is_agent=True)
