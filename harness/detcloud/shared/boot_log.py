"""The cleaning of a machine's boot log: bounded, printable, and without secrets.

A machine image or a user's script may write secrets to the log. Text that looks like a credential
is masked by the sender of the log and again by the server.
"""

from __future__ import annotations

import re

from detcloud.shared.masking import MASK

BOOT_LOG_CHARACTERS_MAX = 4096

_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\n\t\x20-\x7e\xa0-\uffff]")
_NAMES = "passw(?:or)?d|passphrase|secret|token|(?:api|access|private)[-_]?key|credentials?"
_SECRETS = (
    # A private key, even if its end was cut off.
    re.compile(
        r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
    ),
    # The value after a telling name: AWS_SECRET_ACCESS_KEY=..., "password": "...".
    re.compile(
        rf"((?:{_NAMES})[\w-]*[\"']?\s*[=:]\s*)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&\"']+)", re.I
    ),
    # The value after an option or header with a telling name.
    re.compile(rf"(--[\w-]*(?:{_NAMES})[\w-]*\s+)\S+", re.I),
    re.compile(r"((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.I),
    re.compile(r"(authorization\s*:\s*)[^\n]+", re.I),
    # A user with a password in an address.
    re.compile(r"(\w+://)[^\s/@]+:[^\s/@]*(?=@)"),
    # Keys and tokens of well-known forms.
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"),
    re.compile(r"()\b(?:dct_|gh[opsu]_|github_pat_|glpat-|hf_|sk-|xox[abp]-)[\w-]{8,}"),
    re.compile(r"()\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"()(?<![\w/+=])[A-Za-z0-9/+]{40}(?![\w/+=])"),
)


def clean_boot_log(text: str) -> str:
    """Return the last 4096 characters of a log without control characters and with masked secrets.

    Terminal sequences and characters above U+FFFF are removed as well. Tabs stay, line ends become
    newlines, and outer white space is removed. MASK replaces values after telling names, passwords
    in addresses, keys and tokens of known forms, and any 40 adjacent base64 characters. Return ""
    for a blank log. Masking finds only the known forms, so other secrets stay.
    """
    # Mask before the cut, because the name of a secret may lie before the cut.
    text = _UNPRINTABLE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    for pattern in _SECRETS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text.strip()[-BOOT_LOG_CHARACTERS_MAX:].strip()
