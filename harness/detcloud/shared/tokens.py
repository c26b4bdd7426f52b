"""The tokens by which users, agents and trials authenticate to a cluster."""

import secrets

TOKEN_PREFIX = "dct_"
"""The prefix by which logs and secret scanners recognize detcloud's tokens."""


def mint_token() -> str:
    """Generate a token with 256 random bits after TOKEN_PREFIX. Nothing is stored."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)
