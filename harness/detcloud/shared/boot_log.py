"""The last lines that a machine wrote while it booted: bounded, printable, and without secrets.

A boot script of ours writes none, but a machine image and a user's own script may. What looks like
a credential is masked, by those who send such lines and again by those who store them.
"""

from __future__ import annotations

import re

BOOT_LOG_CHARACTERS_MAX = 4096
MASK = "********"

_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\n\t\x20-\x7e\xa0-\uffff]")
_NAMES = "passw(?:or)?d|passphrase|secret|token|(?:api|access|private)[-_]?key|credentials?"
_SECRETS = (
    # A block of a key, also one whose end was cut off.
    re.compile(
        r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
    ),
    # The value of a name that says what it is: AWS_SECRET_ACCESS_KEY=..., "password": "...".
    re.compile(
        rf"((?:{_NAMES})[\w-]*[\"']?\s*[=:]\s*)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&\"']+)", re.I
    ),
    # What follows an option or a header of that kind.
    re.compile(rf"(--[\w-]*(?:{_NAMES})[\w-]*\s+)\S+", re.I),
    re.compile(r"((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.I),
    re.compile(r"(authorization\s*:\s*)[^\n]+", re.I),
    # A user in an address.
    re.compile(r"(\w+://)[^\s/@]+:[^\s/@]*(?=@)"),
    # Keys that are known by their form.
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"),
    re.compile(r"()\b(?:dct_|gh[opsu]_|github_pat_|glpat-|hf_|sk-|xox[abp]-)[\w-]{8,}"),
    re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"()(?<![\w/+=])[A-Za-z0-9/+]{40}(?![\w/+=])"),
)


def clean_boot_log(text: str) -> str:
    """The end of a log, without what no terminal should get and without what may be secret."""
    # Masked before it is cut: the name that tells a secret may be before the cut.
    text = _UNPRINTABLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    for pattern in _SECRETS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text.strip()[-BOOT_LOG_CHARACTERS_MAX:].strip()
