"""The keys and encodings of the rows of alarms.

alarms / ALARM#POOL       an alarm whose condition is true, or whose end was not notified yet
cluster / hourly-cost     the highest costs per hour of all machines
"""

from control_plane.alarms.records import AlarmRow, CostHistory
from control_plane.rows import alarm_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Key

ALARMS = alarm_rows.ALARM.partition
COST_HISTORY = Key(*alarm_rows.HOURLY_COST.only_key)

_ALARM = JsonCodec(
    alarm_rows.ALARM,
    AlarmRow,
    omitted=frozenset({"raised_ms", "cleared_ms", "is_notified", "claimed_ms", "value"}),
)
_HISTORY = JsonCodec(
    alarm_rows.HOURLY_COST,
    CostHistory,
    {"peaks": lambda peaks: {int(hour): micros for hour, micros in peaks.items()}},
)


def alarm_key(alarm: str, pool: str) -> Key:
    """Return the key of an alarm's row."""
    return Key(ALARMS, f"{alarm}#{pool}")


def encode_alarm(row: AlarmRow, before: bytes | None = None) -> bytes:
    """Encode an alarm as the body of a row.

    Args:
        row: the alarm.
        before: the body of the row that is replaced, with fields of newer versions to keep.
    """
    return _ALARM.encode(row, before)


def decode_alarm(body: bytes) -> AlarmRow:
    """Decode the body of an alarm's row. Raises ValueError or TypeError for an invalid body."""
    return _ALARM.decode(body)


def encode_history(history: CostHistory, before: bytes | None = None) -> bytes:
    """Encode the history of costs as the body of a row.

    Args:
        history: the history.
        before: the body of the row that is replaced, with fields of newer versions to keep.
    """
    return _HISTORY.encode(history, before)


def decode_history(body: bytes) -> CostHistory:
    """Decode the body of the row of costs. Raises ValueError or TypeError for an invalid body."""
    return _HISTORY.decode(body)
