"""Pseudorandom numbers that depend on names alone, so that a repeated run has equal numbers."""

from hashlib import blake2b


def hash_fraction(*names: object) -> float:
    """Return a number in [0, 1) that depends only on the texts of the names."""
    text = "/".join(map(str, names)).encode()
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "little") / 2**48
