"""Structured logs: a JSON object in each line, with tokens, signatures and logins redacted."""

import json
import logging
import re

_SECRETS = (
    (re.compile(r"\bdct_[A-Za-z0-9_-]+"), "dct_REDACTED"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s\"'\\,}\])]+"), r"\1REDACTED"),
    (re.compile(r"(?i)(signature\\*[\"']?\s*[=:]\s*\\*[\"']?)[^&\s\"'\\,}\])]+"), r"\1REDACTED"),
    (re.compile(r"(://)[^\s/@\"'\\]+@"), r"\1REDACTED@"),
)


class JsonLines(logging.Formatter):
    """A log formatter that writes a record as a single line of redacted JSON.

    The line has the time in epoch ms, the level, the logger, the message, and the traceback of an
    exception. The dict `fields`, which the caller passes with `extra`, adds further keys.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return redact(json.dumps(line, default=str))


def redact(text: str) -> str:
    """Return a text with `REDACTED` in place of secrets, otherwise unchanged.

    Secrets are detcloud tokens, bearer credentials, values of fields and parameters with names that
    end in `signature`, and the logins in URLs. The words around a secret stay, such as `Bearer` or
    the prefix of a token.
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
