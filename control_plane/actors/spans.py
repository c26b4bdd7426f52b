"""Spans of trials' runs: the trace context, the stored record, and the ids of spans. Pure.

The ids of a run's spans are digests of the trace, the trial and the epoch. A repeated export
therefore sends equal spans, and the trial's code knows the id of its run in advance.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple

from control_plane.rows import telemetry_rows
from control_plane.rows.json_codec import JsonCodec

SPANS: Final = telemetry_rows.SPANS.partition
KEPT_MS: Final = 24 * 3_600_000
"""The time after which spans that were not exported expire."""
RUN: Final = "run"
"""The name of the span of a whole run, the parent of the other spans."""

# W3C Trace Context: version, trace id, parent id and flags. Later versions may append fields.
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 0x01


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The trace of a request, and the span in which the request was sent."""

    trace: str
    """The id of the trace, 32 hexadecimal digits."""
    span: str
    """The id of the span, 16 hexadecimal digits."""
    is_sampled: bool
    """Whether the sender of the request records the trace."""

    def encode(self) -> str:
        """Return the value of the header `traceparent`."""
        return f"00-{self.trace}-{self.span}-{_SAMPLED if self.is_sampled else 0:02x}"


class Span(NamedTuple):
    """A span of a run. Times are epoch ms of the server."""

    name: str
    """The name: RUN, or the name of a phase."""
    started_ms: int
    ended_ms: int
    failure: str = ""
    """Why the run failed, or "" for a span without a failure."""


@dataclass(frozen=True, slots=True)
class RunSpans:
    """The spans of a run that ended with an event."""

    traceparent: str
    """The trace context of the experiment's submission."""
    experiment: int
    """The id of the experiment."""
    trial: int
    """The id of the trial."""
    epoch: int
    """The epoch of the run."""
    pool: str
    """The pool of the run."""
    agents: tuple[str, ...]
    """The agents of the run, in the order of ranks."""
    spans: tuple[Span, ...]


_CODEC = JsonCodec(
    telemetry_rows.SPANS,
    RunSpans,
    # Values that newer versions append to a span are ignored.
    {
        "agents": tuple,
        "spans": lambda spans: tuple(Span(*fields[: len(Span._fields)]) for fields in spans),
    },
    ensure_ascii=False,
)


def parse_traceparent(text: str) -> TraceParent | None:
    """Parse the value of a header `traceparent`.

    Return None for other texts, as W3C Trace Context demands: an invalid header is ignored.
    """
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    is_invalid = version == "ff" or (version == "00" and rest is not None)
    if is_invalid or not int(trace, 16) or not int(span, 16):
        return None
    return TraceParent(trace, span, bool(int(flags, 16) & _SAMPLED))


def span_id(trace: str, trial: int, epoch: int, name: str) -> str:
    """Return the id of a span of a run, 16 hexadecimal digits."""
    digest = sha256(f"{trace}.{trial}.{epoch}.{name}".encode()).hexdigest()[:16]
    # An id of zeros is invalid.
    return digest if int(digest, 16) else "1".zfill(16)


def traceparent_of_run(traceparent: str, trial: int, epoch: int) -> str:
    """Return the trace context for the code of a run. The parent is the span of the run.

    Return "" for a text that is no trace context, such as "".
    """
    parent = parse_traceparent(traceparent)
    if parent is None:
        return ""
    return TraceParent(
        parent.trace, span_id(parent.trace, trial, epoch, RUN), parent.is_sampled
    ).encode()


def spans_sort_key(time_ms: int, trial: int, epoch: int, event: str) -> str:
    """Return the sort key of the spans of an event. Rows sort by the time of the event."""
    return f"{time_ms:015d}.{trial}.{epoch}.{event}"


def encode_spans(spans: RunSpans) -> bytes:
    """Encode spans of a run as the body of a row."""
    return _CODEC.encode(spans)


def decode_spans(body: bytes) -> RunSpans:
    """Decode the body of a row. Fields of newer versions are ignored.

    Raises ValueError for a body that is not JSON, and TypeError for a missing field.
    """
    return _CODEC.decode(body)
