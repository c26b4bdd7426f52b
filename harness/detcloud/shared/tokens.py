"""The tokens by which users, agents and trials prove themselves to a cluster."""

import secrets

TOKEN_PREFIX = "dct_"
"""Marks our tokens, so that logs and secret scanners know them."""


def mint_token() -> str:
    """A new random token of 256 bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)
