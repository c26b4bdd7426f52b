"""The keys of the two ends of a tunnel, and the TLS between the ends.

Each end makes a key and a self-signed certificate for one tunnel. The API passes the certificates
on. Each end trusts exactly the peer's certificate, so the relay cannot take part.
"""

from __future__ import annotations

import base64
import hashlib
import ssl
import tempfile
from dataclasses import dataclass, field
from typing import cast

from detcloud.shared.tunnel.certificate_text import decode_certificate
from detcloud.shared.tunnel.elliptic_curve import draw_secret, public_point, sign

_NAME = "detcloud tunnel"
# Certificates do not expire, because the clocks of the two ends may differ. The tunnel's row in the
# cluster ends a tunnel.
_BEGIN, _END = "20000101000000Z", "99991231235959Z"

_EC_KEY = bytes.fromhex("06072a8648ce3d0201")
_P256 = bytes.fromhex("06082a8648ce3d030107")
_ECDSA_SHA256 = bytes.fromhex("06082a8648ce3d040302")
_COMMON_NAME = bytes.fromhex("0603550403")

# OpenSSL decrypts at most a record at once.
_RECORD_BYTES = 16_384

_INTEGER, _BITS, _OCTETS, _UTF8, _TIME = 0x02, 0x03, 0x04, 0x0C, 0x18
_SEQUENCE, _SET, _FIRST, _SECOND = 0x30, 0x31, 0xA0, 0xA1


@dataclass(frozen=True)
class TunnelKey:
    """The certificate and the secret key of an end."""

    certificate: str
    """The certificate in base64, without line breaks."""
    secret_pem: str = field(repr=False)


def make_key() -> TunnelKey:
    """Make a key and a certificate for a single tunnel."""
    secret = draw_secret()
    x, y = public_point(secret)
    point = b"\x04" + x.to_bytes(32) + y.to_bytes(32)
    body = _certificate_body(point)
    r, s = sign(secret, body, draw_secret())
    signature = _sequence(_integer(r), _integer(s))
    certificate = _sequence(body, _sequence(_ECDSA_SHA256), _bits(signature))
    stored = _sequence(
        _integer(1),
        _element(_OCTETS, secret.to_bytes(32)),
        _element(_FIRST, _P256),
        _element(_SECOND, _bits(point)),
    )
    return TunnelKey(base64.b64encode(certificate).decode(), _pem("EC PRIVATE KEY", stored))


def relay_context(key: TunnelKey) -> ssl.SSLContext:
    """Return the context of a relay that presents `key` to any client, which must pin the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Each end opens a connection for hours, and never resumes a TLS session.
    context.num_tickets = 0
    _load_key(context, key)
    return context


def certificate_pin(key: TunnelKey) -> str:
    """Return the SHA-256 of the key's certificate in hexadecimal, for `dial_relay`."""
    return hashlib.sha256(decode_certificate(key.certificate)).hexdigest()


class SecureChannel:
    """TLS 1.3 between the two ends, as bytes in and bytes out.

    `receive` takes bytes of the connection, `read` returns decrypted bytes, `write` encrypts, and
    `pending` returns bytes for the connection.
    """

    def __init__(self, key: TunnelKey, peer_certificate: str, *, is_agent: bool) -> None:
        """Begin a handshake. The agent's end is the TLS server.

        Raise ValueError if the peer's certificate cannot be parsed.
        """
        self._expected = decode_certificate(peer_certificate)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = _context(key, self._expected, is_agent=is_agent)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_agent)
        self.is_established = False
        """Whether the handshake is complete and the peer has the expected certificate."""
        self._shake_hands()

    def receive(self, data: bytes | memoryview) -> None:
        """Add bytes of the connection. Raise ssl.SSLError if the peer is not the expected peer."""
        self._incoming.write(data)
        if not self.is_established:
            self._shake_hands()

    def read(self) -> memoryview:
        """Return all decrypted bytes of complete records. Empty before the handshake's end.

        Raise ssl.SSLError for manipulated bytes, and if the peer has ended the TLS connection.
        """
        size, pending = 0, self._incoming.pending
        if not (self.is_established and pending):
            return memoryview(b"")
        # OpenSSL may have stored a part of another record. A record has fewer bytes decrypted.
        room = memoryview(bytearray(pending + _RECORD_BYTES))
        while True:
            try:
                # With a buffer, `read` returns a number.
                count = cast("int", self._tls.read(_RECORD_BYTES, room[size:]))
            except ssl.SSLWantReadError:
                return room[:size]
            if not count:
                raise ssl.SSLEOFError("the other end has closed the tunnel's connection")
            size += count

    def write(self, data: bytes) -> None:
        """Encrypt bytes. Call this only after the handshake's end."""
        while data:
            data = data[self._tls.write(data) :]

    def pending(self) -> bytes:
        """Take the bytes to send on the connection from the channel. May return b""."""
        return self._outgoing.read()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        if self._tls.getpeercert(binary_form=True) != self._expected:
            raise ssl.SSLError("the other end has another certificate than the cluster named")
        self.is_established = True


def _context(key: TunnelKey, expected: bytes, *, is_agent: bool) -> ssl.SSLContext:
    """Return a context that presents `key` and trusts only the certificate `expected`."""
    protocol = ssl.PROTOCOL_TLS_SERVER if is_agent else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if is_agent:
        # A tunnel never resumes a TLS session, and each ticket would cost bytes.
        context.num_tickets = 0
    try:
        context.load_verify_locations(cadata=expected)
    except ssl.SSLError as error:
        raise ValueError(f"the certificate of the tunnel's other end is invalid: {error}") from None
    _load_key(context, key)
    return context


def _load_key(context: ssl.SSLContext, key: TunnelKey) -> None:
    """Let a context present a key with the key's certificate."""
    pem = _pem("CERTIFICATE", decode_certificate(key.certificate)) + key.secret_pem
    # `ssl` loads keys only from files. The file is readable by this user alone.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def _certificate_body(point: bytes) -> bytes:
    """Return the part of a certificate that is signed (RFC 5280, TBSCertificate)."""
    name = _sequence(
        _element(_SET, _sequence(_COMMON_NAME, _element(_UTF8, _NAME.encode()))),
    )
    times = (_element(_TIME, time.encode()) for time in (_BEGIN, _END))
    key = _sequence(_sequence(_EC_KEY, _P256), _bits(point))
    serial = draw_secret() >> 128 | 1
    return _sequence(_integer(serial), _sequence(_ECDSA_SHA256), name, _sequence(*times), name, key)


def _pem(label: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""))


def _sequence(*parts: bytes) -> bytes:
    return _element(_SEQUENCE, b"".join(parts))


def _integer(value: int) -> bytes:
    return _element(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1))


def _bits(content: bytes) -> bytes:
    return _element(_BITS, b"\x00" + content)


def _element(tag: int, content: bytes) -> bytes:
    """Return a DER element. The content has less than 65,536 bytes."""
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(size))) + size + content
