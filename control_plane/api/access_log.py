"""Structured logs: one JSON object a line, with tokens, signatures and logins taken out."""

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
    """A formatter that writes a record with its `fields` (a dict given by `extra`) as one redacted
    line.
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
    """Take our tokens, bearer credentials, signatures and logins in URLs out of a text."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text
