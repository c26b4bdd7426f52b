"""Values that a newer version appended to rows which are never rewritten field by field."""

import json
from dataclasses import asdict

from control_plane.actors import cost
from control_plane.fleet.bills import bills_partition, decode_bill, encode_bill


def test_usage_of_newer_versions_is_read() -> None:
    usage = cost.Usage(1, 2, 3, 4, 5, 6)
    values = [*asdict(usage).values(), "newer"]
    assert cost.decode_usage(json.dumps(values).encode()) == usage


def test_bill_of_newer_versions_is_read() -> None:
    body = json.dumps({"2026-11-01": 5, "currency": "USD"}).encode()
    assert list(decode_bill(body).values()) == [5]
    assert json.loads(encode_bill(decode_bill(body), body))["currency"] == "USD"
    assert bills_partition("default") == "bills#default"
