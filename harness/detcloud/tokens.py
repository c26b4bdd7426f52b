"""Tokens as every part of a cluster makes them."""

import secrets

TOKEN_PREFIX = "dct_"
"""Marks our tokens, so that logs and secret scanners know them."""


def mint_token() -> str:
    """A new token with 256 bits of chance."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)
