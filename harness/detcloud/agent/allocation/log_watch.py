"""The search of a trial's log for lines that match the log policies of the experiment.

The first matching line of each policy becomes a record `log_policy` of the agent's report. The
records precede the record of the exit, so that the cluster knows all matches when a run ends.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from detcloud.agent.allocation.trial_log import decode_log, read_bytes
from detcloud.shared.line_patterns.automaton import LinePattern, PatternSlow
from detcloud.shared.line_patterns.syntax import PatternInvalid
from detcloud.shared.masking import mask_urls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from detcloud.agent.allocation.agent_report import AgentReport
    from detcloud.agent.allocation.directory import AllocationDirectory

RECORD_KIND: Final = "log_policy"
LINE_BYTES_MAX: Final = 64 * 1024
"""The bytes of a line that are compared with patterns."""
LINE_CHARACTERS_MAX: Final = 500
"""The characters of a matching line that are reported."""
SCAN_SECONDS: Final = 0.05
"""The longest time of a search, after which the agent looks after other trials."""
END_SECONDS_MAX: Final = 5.0
"""The longest delay of an exit by the search of the rest of the log."""
# The cluster sends up to 64 policies of the configuration, and the default policies.
POLICIES_MAX: Final = 80
WORK_MAX: Final = 2_000_000
"""The work of all automata of a run, about two seconds on a CPU."""
_CHUNK_BYTES: Final = 64 * 1024
_LINE_END: Final = re.compile(rb"[\r\n]")
_RANK: Final = re.compile(rb"\[rank=(\d{1,5})\] ?")
_NOTICE: Final = b"[detcloud] "
_CONFIGURATION: Final = re.compile(rb"""["']?log_policies["']?\s*:""")
"""A line with the configuration contains the patterns, and would match them."""


@dataclass(frozen=True)
class _Policy:
    """A policy without a matching line so far."""

    fields: Mapping[str, Any]
    """The policy as in the specification."""
    pattern: LinePattern
    texts: tuple[bytes, ...]
    """Texts of which each matching line contains one, in lower case. Empty if none are known."""
    window: re.Pattern[bytes] | None
    """An expression that each matching line contains, used without texts. None if unknown."""

    @property
    def title(self) -> str:
        """The name of the policy for users. The pattern of a policy without a name."""
        return str(self.fields.get("name") or self.fields["pattern"])


class LogWatch:
    """The search of a run's log. The caller holds the allocation's lock."""

    def __init__(
        self,
        directory: AllocationDirectory,
        spec: Mapping[str, Any] | None,
        report: AgentReport,
        bytes_max: int,
    ) -> None:
        """Prepare the policies of a specification. Write a notice for each unusable pattern.

        Policies with a record in the report are left out, so that an agent that was started again
        reports no line twice.

        Args:
            spec: the specification of the run, or None.
            report: the agent's report, which gets the records.
            bytes_max: the size of the log up to which lines are compared.
        """
        self._directory = directory
        self._report = report
        self._bytes_max = bytes_max
        self._offset = 0
        self._rest = b""
        self._ended_at: float | None = None
        self._policies: list[_Policy] = []
        given = (spec or {}).get("log_policies")
        listed = given[:POLICIES_MAX] if isinstance(given, list) else []
        found = [_key(record) for record in report.records() if record.get("kind") == RECORD_KIND]
        waiting = [one for one in listed if isinstance(one, Mapping) and _key(one) not in found]
        for fields in waiting:
            try:
                pattern = LinePattern(str(fields["pattern"]), WORK_MAX // len(waiting))
            except (PatternInvalid, KeyError) as error:
                title = fields.get("name") or fields.get("pattern")
                self._write_notice(f"the log policy {title} is not used: its pattern {error}")
                continue
            self._policies.append(_prepare_policy(fields, pattern))

    def search(self, *, ended: bool) -> bool:
        """Search new text of the log, for about SCAN_SECONDS. Append a record for each match.

        Return whether the whole present log is searched, or nothing is left to search for. The
        search of an ended trial gives up after END_SECONDS_MAX. Raise OSError if a record cannot be
        written; the next call then finds the line again.

        Args:
            ended: whether the trial has ended, so that the last line is complete.
        """
        began = time.monotonic()
        if ended and self._ended_at is None:
            self._ended_at = began
        while self._policies:
            room = min(_CHUNK_BYTES, self._bytes_max - self._offset)
            content = read_bytes(self._directory.log, self._offset, room)[0] if room > 0 else b""
            if not content and not (ended and self._rest):
                return True
            text = self._rest + content
            end = len(text) if not content else _end_of_lines(text)
            self._search_lines(text[:end])
            self._rest = text[end:][:LINE_BYTES_MAX]
            self._offset += len(content)
            if time.monotonic() - began > SCAN_SECONDS:
                return self._must_give_up()
        return True

    def _must_give_up(self) -> bool:
        """Stop the search of an ended trial after END_SECONDS_MAX. Return whether it stopped."""
        if self._ended_at is None or time.monotonic() - self._ended_at < END_SECONDS_MAX:
            return False
        self._policies.clear()
        self._write_notice(
            "the rest of the log is not compared with log policies, for lack of time"
        )
        return True

    def _search_lines(self, text: bytes) -> None:
        """Compare the complete lines of a text with all policies that have not matched."""
        lowered = text.lower()
        for policy in list(self._policies):
            try:
                match = next(_matching_lines(policy, text, lowered), None)
            except PatternSlow:
                self._policies.remove(policy)
                self._write_notice(
                    f"the log policy {policy.title} is not used any more: "
                    "its pattern takes too much time"
                )
                continue
            if match is not None:
                self._append_record(policy, match)
                self._policies.remove(policy)

    def _append_record(self, policy: _Policy, line: bytes) -> None:
        rank = _RANK.match(line)
        shown = decode_log(_without_rank(line)).strip()
        fields = {
            name: policy.fields[name]
            for name in ("name", "pattern", "actions", "signal", "webhook")
            if policy.fields.get(name)
        }
        self._report.append(
            RECORD_KIND,
            **fields,
            line=mask_urls(shown)[:LINE_CHARACTERS_MAX],
            rank=int(rank[1]) if rank else 0,
        )

    def _write_notice(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._directory.write_notices([f"{_NOTICE.decode()}{text}"])


def _prepare_policy(fields: Mapping[str, Any], pattern: LinePattern) -> _Policy:
    """Return the policy with the texts or the window that matching lines contain.

    Texts of a single character are in most lines, and are not used.
    """
    texts = sorted(pattern.required_texts)
    if min(map(len, texts), default=0) > 1:
        return _Policy(fields, pattern, tuple(text.encode() for text in texts), None)
    window = pattern.required_window
    return _Policy(fields, pattern, (), re.compile(window.encode()) if window else None)


def _matching_lines(policy: _Policy, text: bytes, lowered: bytes) -> Iterator[bytes]:
    """Yield the lines that match the policy's pattern, each with at most LINE_BYTES_MAX bytes.

    Lines of detcloud itself and lines with a configuration are skipped.

    Args:
        text: complete lines.
        lowered: the same text in lower case.
    """
    for line in _candidate_lines(policy, text, lowered):
        own = _without_rank(line)
        if own.startswith(_NOTICE) or _CONFIGURATION.search(own):
            continue
        if policy.pattern.matches(decode_log(own)):
            yield line


def _candidate_lines(policy: _Policy, text: bytes, lowered: bytes) -> Iterator[bytes]:
    """Yield the lines that may match: all lines if nothing is known about matching lines."""
    if policy.window is None and not policy.texts:
        yield from (line[:LINE_BYTES_MAX] for line in _LINE_END.split(text))
        return
    for wanted in policy.texts or (None,):
        at = 0
        while (found := _find_part(policy, wanted, text, lowered, at)) >= 0:
            start = max(text.rfind(b"\n", 0, found), text.rfind(b"\r", 0, found)) + 1
            following = _LINE_END.search(text, found)
            at = following.start() if following else len(text)
            yield text[start:at][:LINE_BYTES_MAX]
            # A hit at the end of a line must not be found again.
            at = max(at, found + 1)


def _find_part(
    policy: _Policy, wanted: bytes | None, text: bytes, lowered: bytes, start: int
) -> int:
    """Return the position of a required text, or else of the window. -1 if neither follows."""
    if wanted is not None:
        return lowered.find(wanted, start)
    match = policy.window.search(text, start) if policy.window else None
    return match.start() if match else -1


def _end_of_lines(text: bytes) -> int:
    """Return the number of bytes up to and with the last newline or carriage return."""
    return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1


def _without_rank(line: bytes) -> bytes:
    return _RANK.sub(b"", line, count=1) if line.startswith(b"[rank=") else line


def _key(fields: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the values that a policy and the record of a match have in common."""
    return str(fields.get("name") or ""), fields.get("pattern"), fields.get("actions") or []
