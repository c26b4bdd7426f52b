"""New keys and signatures on the curve P-256 (FIPS 186-5), for the certificates of tunnels.

Python's `ssl` uses keys but makes none, and the agent has no packages beside the standard library.
A key of this module signs a single certificate of its own. OpenSSL does the rest: the handshakes
and all encryption. The code does not run in constant time. A measurement of the single signature
would need an attacker on the same machine, and the key ends with the tunnel.
"""

from __future__ import annotations

import hashlib
import secrets

# The parameters of P-256 from FIPS 186-5: y² = x³ - 3x + b modulo PRIME.
PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

# A point in Jacobian coordinates, (x / z², y / z³). z is 0 for the point at infinity.
_Jacobian = tuple[int, int, int]
_INFINITY: _Jacobian = (1, 1, 0)


def draw_secret() -> int:
    """Return a random secret key, or a random number for a single signature: 1 to ORDER - 1."""
    return secrets.randbelow(ORDER - 1) + 1


def public_point(secret: int) -> tuple[int, int]:
    """Return the public key of a secret key: the affine coordinates of `secret` times BASE."""
    return _multiply_base(secret)


def sign(secret: int, message: bytes, number: int) -> tuple[int, int]:
    """Return the ECDSA signature of a message with SHA-256.

    `number` must be a fresh value of `draw_secret`: a repeated number reveals the secret key. Raise
    ValueError for the improbable numbers without a valid signature.
    """
    digest = int.from_bytes(hashlib.sha256(message).digest())
    r = _multiply_base(number)[0] % ORDER
    s = pow(number, -1, ORDER) * (digest + r * secret) % ORDER
    if not r or not s:
        raise ValueError("this number has no signature; draw another")
    return r, s


def _multiply_base(factor: int) -> tuple[int, int]:
    """Return the affine coordinates of `factor` times BASE, for 1 to ORDER - 1."""
    total = _INFINITY
    for bit in bin(factor)[2:]:
        total = _double(total)
        if bit == "1":
            total = _add_base(total)
    x, y, z = total
    inverse = pow(z, -1, PRIME)
    return x * inverse**2 % PRIME, y * inverse**3 % PRIME


def _double(point: _Jacobian) -> _Jacobian:
    """Return twice the point, by the formulas dbl-2001-b for curves with a = -3."""
    x, y, z = point
    if not z:
        return _INFINITY
    delta, gamma = z * z % PRIME, y * y % PRIME
    beta = x * gamma % PRIME
    alpha = 3 * (x - delta) * (x + delta) % PRIME
    new_x = (alpha * alpha - 8 * beta) % PRIME
    new_z = 2 * y * z % PRIME
    new_y = (alpha * (4 * beta - new_x) - 8 * gamma * gamma) % PRIME
    return new_x, new_y, new_z


def _add_base(point: _Jacobian) -> _Jacobian:
    """Return the point plus BASE. The point must differ from BASE and its negative."""
    x, y, z = point
    if not z:
        return (*BASE, 1)
    square = z * z % PRIME
    h = (BASE[0] * square - x) % PRIME
    r = (BASE[1] * square * z - y) % PRIME
    assert h
    h2 = h * h % PRIME
    h3, v = h2 * h % PRIME, x * h2 % PRIME
    new_x = (r * r - h3 - 2 * v) % PRIME
    new_y = (r * (v - new_x) - y * h3) % PRIME
    return new_x, new_y, h * z % PRIME
