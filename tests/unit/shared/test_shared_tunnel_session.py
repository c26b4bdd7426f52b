"""Sessions of tunnels: windows, resumption by offset, and hostile ends."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detcloud.shared.tunnel.frames import (
    DATA,
    END,
    KINDS,
    NOTICE,
    SERVICE,
    Hello,
    ProtocolError,
    encode_ack,
    encode_credit,
    encode_frame,
    encode_hello,
    encode_port,
    encode_service,
    encode_text,
)
from detcloud.shared.tunnel.multiplexer import (
    GROWTH_BYTES_MAX,
    OUTGOING_BYTES_MAX,
    PARTS_MAX,
    STREAMS_MAX,
    WINDOW_BYTES,
    WINDOW_BYTES_MAX,
    ResetReason,
    ServiceOpened,
    StreamChanged,
    StreamOpened,
    StreamReset,
)
from detcloud.shared.tunnel.session import (
    REPLAY_BYTES_MAX,
    NoticeReceived,
    SessionClosed,
    SessionResumed,
    TunnelSession,
    UnknownSession,
)
from tests.unit.shared.tunnel_pair import SESSION, SessionPair, connected_pair, next_bytes, take


def open_stream(pair: SessionPair, port: int = 80) -> int:
    stream = pair.user.streams.open_stream(port)
    assert stream is not None
    pair.settle()
    return stream


def test_first_connection_resumes_both_ends() -> None:
    pair = connected_pair()
    assert pair.user_events == [SessionResumed(is_first=True)]
    assert pair.agent_events == [SessionResumed(is_first=True)]


def test_bytes_and_ends_pass_in_both_directions() -> None:
    pair = connected_pair()
    stream = open_stream(pair, 8888)
    assert pair.opened_streams() == [StreamOpened(stream, 8888)]
    pair.user.streams.send(stream, b"question")
    pair.user.streams.end(stream)
    pair.settle()
    assert take(pair.agent, stream) == b"question"
    assert pair.agent.streams.has_ended(stream)
    pair.agent.streams.send(stream, b"answer")
    pair.agent.streams.end(stream)
    pair.settle()
    assert take(pair.user, stream) == b"answer"
    assert (len(pair.user.streams), len(pair.agent.streams)) == (0, 0)


def test_service_is_opened_by_name_beside_ports() -> None:
    pair = connected_pair()
    port = open_stream(pair, 8888)
    service = pair.user.streams.open_service("location")
    pair.settle()
    assert [*pair.opened_streams(), pair.agent_events[-1]] == [
        StreamOpened(port, 8888),
        ServiceOpened(port + 1, "location"),
    ]
    assert service is not None
    pair.agent.streams.send(service, b"{}")
    pair.agent.streams.end(service)
    pair.settle()
    assert take(pair.user, service) == b"{}"
    assert pair.user.streams.has_ended(service)


def test_opening_of_a_service_is_sent_again_after_a_break() -> None:
    pair = connected_pair()
    pair.user.streams.open_service("ssh")
    assert next_bytes(pair.user, 1 << 20)
    pair.connect()
    pair.settle()
    assert ServiceOpened(1, "ssh") in pair.agent_events


def test_reset_reaches_the_other_end_with_its_reason() -> None:
    pair = connected_pair()
    stream = open_stream(pair)
    pair.agent.streams.reset(stream, ResetReason.FOREIGN)
    pair.settle()
    assert StreamReset(stream, ResetReason.FOREIGN) in pair.user_events
    assert not pair.user.streams.is_open(stream)


def test_reset_of_unsent_stream_sends_nothing() -> None:
    pair = connected_pair()
    stream = pair.user.streams.open_stream(80)
    assert stream is not None
    pair.user.streams.reset(stream, ResetReason.CLOSED)
    pair.settle()
    assert pair.opened_streams() == []


def test_slow_reader_holds_one_window_and_delays_no_other_stream() -> None:
    pair = connected_pair()
    slow, quick = open_stream(pair), open_stream(pair)
    sent = 0
    while count := pair.user.streams.sendable(slow):
        pair.user.streams.send(slow, bytes(count))
        sent += count
        pair.settle()
    # The sender's buffer is full only with bytes that the receiver allows.
    assert sent == WINDOW_BYTES
    pair.user.streams.send(quick, b"key")
    pair.settle()
    assert take(pair.agent, quick) == b"key"
    assert len(take(pair.agent, slow)) == WINDOW_BYTES
    pair.settle()
    assert pair.user.streams.sendable(slow) == OUTGOING_BYTES_MAX


@pytest.mark.parametrize(("count", "growth"), [(1, WINDOW_BYTES_MAX - WINDOW_BYTES), (8, 8 << 20)])
def test_windows_of_busy_streams_grow_within_the_budget(count: int, growth: int) -> None:
    pair = connected_pair()
    streams = [open_stream(pair) for _ in range(count)]
    for _ in range(300):
        for stream in streams:
            pair.user.streams.send(stream, bytes(pair.user.streams.sendable(stream)))
        pair.settle()
        for stream in streams:
            take(pair.agent, stream)
        pair.settle()
    windows = [pair.agent.streams._streams[stream].window for stream in streams]
    assert max(windows) <= WINDOW_BYTES_MAX
    assert sum(windows) - count * WINDOW_BYTES == growth
    for stream in streams:
        pair.user.streams.reset(stream, ResetReason.CLOSED)
    pair.settle()
    assert pair.agent.streams._growth_left == GROWTH_BYTES_MAX


def test_streams_send_in_turn() -> None:
    pair = connected_pair()
    bulk, keys = open_stream(pair), open_stream(pair)
    pair.user.streams.send(bulk, bytes(OUTGOING_BYTES_MAX))
    pair.user.streams.send(keys, b"key")
    # One chunk of the bulk, then the key.
    pair.to_agent += next_bytes(pair.user, 1) + next_bytes(pair.user, 1)
    pair.settle()
    assert take(pair.agent, keys) == b"key"


def test_sender_stops_while_nothing_is_acknowledged() -> None:
    pair = connected_pair()
    streams = [open_stream(pair) for _ in range(100)]
    sent = bytearray()
    for stream in streams:
        pair.user.streams.send(stream, bytes(pair.user.streams.sendable(stream)))
        sent += next_bytes(pair.user, 1 << 30)
    assert len(sent) < REPLAY_BYTES_MAX + OUTGOING_BYTES_MAX + 100
    assert pair.user.replay_memory_bytes < REPLAY_BYTES_MAX + OUTGOING_BYTES_MAX + 1_000
    pair.agent_events += pair.agent.feed(bytes(sent))
    pair.settle()
    assert sum(len(take(pair.agent, stream)) for stream in streams) == 100 * WINDOW_BYTES


def test_break_loses_no_byte() -> None:
    pair = connected_pair()
    stream = open_stream(pair)
    pair.user.streams.send(stream, b"lost on the way")
    next_bytes(pair.user, 1 << 20)
    pair.connect()
    pair.settle()
    assert take(pair.agent, stream) == b"lost on the way"
    assert pair.user_events[-1] == SessionResumed(is_first=False)


def test_received_bytes_are_not_repeated_after_a_break() -> None:
    pair = connected_pair()
    stream = open_stream(pair)
    pair.user.streams.send(stream, b"once")
    # The agent's acknowledgement is lost.
    pair.agent.feed(next_bytes(pair.user, 1 << 20))
    pair.connect()
    pair.settle()
    assert take(pair.agent, stream) == b"once"


def test_acknowledgement_frees_the_replay() -> None:
    pair = connected_pair()
    stream = open_stream(pair)
    pair.user.streams.send(stream, b"x" * 1_000)
    pair.settle()
    assert pair.user.replay_memory_bytes > 1_000
    pair.agent.acknowledge()
    pair.settle()
    assert pair.user.replay_memory_bytes == 0


def test_restarted_agent_refuses_an_old_session() -> None:
    pair = connected_pair()
    open_stream(pair)
    pair.agent = TunnelSession(None)
    pair.connect()
    pair.to_agent += next_bytes(pair.user, 1 << 20)
    with pytest.raises(UnknownSession):
        pair.agent.feed(bytes(pair.to_agent))


def test_close_reaches_the_other_end() -> None:
    pair = connected_pair()
    pair.agent.close("the allocation ended")
    pair.settle()
    assert pair.user_events[-1] == SessionClosed("the allocation ended")
    assert next_bytes(pair.user, 1 << 20) == b""


def test_notice_is_shown_once_even_after_a_break() -> None:
    pair = connected_pair()
    pair.agent.notice("the machine ends")
    next_bytes(pair.agent, 1 << 20)
    pair.connect()
    pair.settle()
    assert [e for e in pair.user_events if isinstance(e, NoticeReceived)] == [
        NoticeReceived("the machine ends")
    ]


def test_ping_is_answered() -> None:
    pair = connected_pair()
    pair.user.ping()
    assert pair.step()
    assert pair.step()
    assert not pair.step()


def test_more_streams_than_allowed_are_refused() -> None:
    pair = connected_pair()
    for _ in range(STREAMS_MAX):
        assert pair.user.streams.open_stream(80) is not None
    assert pair.user.streams.open_stream(80) is None
    pair.settle()
    extra = encode_port(STREAMS_MAX + 1, 80)
    pair.agent_events += pair.agent.feed(extra)
    assert len(pair.opened_streams()) == STREAMS_MAX


def resumed_agent() -> TunnelSession:
    agent = TunnelSession(None)
    agent.begin_connection()
    agent.feed(encode_hello(Hello(SESSION, 0, is_new=True)))
    return agent


@pytest.mark.parametrize(
    ("hostile", "text"),
    [
        (encode_frame(DATA, 1, b"x"), "not open"),
        (encode_port(1, 80) + encode_port(1, 80), "after stream 1"),
        (encode_port(2, 80) + encode_port(1, 80), "after stream 2"),
        (encode_port(1, 80) + encode_frame(END, 1) + encode_frame(END, 1), "twice"),
        (encode_port(1, 80) + encode_frame(END, 1) + encode_frame(DATA, 1, b"x"), "after the end"),
        (encode_port(1, 80) + 2 * encode_frame(DATA, 1, bytes(65_536)), "0 were allowed"),
        (encode_port(1, 80) + encode_credit(1, 0), "allows"),
        (encode_port(1, 80) + encode_credit(1, 1 << 31), "allows"),
        (encode_frame(SERVICE, 1, b"\xff"), "not UTF-8"),
        (encode_service(1, "ssh") + encode_port(1, 80), "opened stream 1 after stream 1"),
        (encode_ack(1), "acknowledged offset 1"),
        (encode_text(NOTICE, "x"), "user's end sent a notice"),
        (encode_hello(Hello(SESSION, 0, is_new=False)), "second HELLO"),
    ],
)
def test_broken_rules_end_the_session(hostile: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        resumed_agent().feed(hostile)


def test_agent_cannot_open_streams() -> None:
    pair = connected_pair()
    with pytest.raises(ProtocolError, match="only the user's end"):
        pair.user.feed(encode_port(1, 80))


def test_frames_before_the_hello_are_refused() -> None:
    agent = TunnelSession(None)
    agent.begin_connection()
    with pytest.raises(ProtocolError, match="expected a HELLO"):
        agent.feed(encode_port(1, 80))


@pytest.mark.parametrize("offset", [1, 10_000])
def test_hello_with_an_impossible_offset_is_refused(offset: int) -> None:
    pair = connected_pair()
    pair.user.streams.open_stream(80)
    pair.settle()
    pair.user.begin_connection()
    with pytest.raises(ProtocolError):
        pair.user.feed(encode_hello(Hello(SESSION, offset, is_new=False)))


def test_single_bytes_cost_no_object_each() -> None:
    agent = resumed_agent()
    agent.feed(encode_port(1, 80) + encode_frame(DATA, 1, b"x") * 10_000)
    assert len(agent.streams._streams[1].incoming) < 10


def test_sent_single_bytes_cost_no_object_each() -> None:
    pair = connected_pair()
    stream = open_stream(pair)
    for _ in range(10_000):
        pair.user.streams.send(stream, b"x")
    # Objects of 4,096 bytes at most are merged.
    assert len(pair.user.streams._streams[stream].outgoing) == 3
    assert pair.user.next_frames(1 << 20) == [encode_frame(DATA, stream, b"x" * 10_000)]


@given(sizes=st.lists(st.integers(1, 40_000), max_size=12), taken=st.integers(1, 50_000))
def test_pieces_of_any_size_arrive_in_order(sizes: list[int], taken: int) -> None:
    pair = connected_pair()
    stream, sent, received = open_stream(pair), b"", b""
    for number, size in enumerate(sizes):
        data = bytes([number]) * min(size, pair.user.streams.sendable(stream))
        pair.user.streams.send(stream, data)
        sent += data
    while part := take(pair.agent, stream, taken) or (pair.step() and b""):
        received += part
    pair.settle()
    while part := take(pair.agent, stream, taken):
        received += part
    assert received == sent


def test_parts_of_received_bytes_are_limited() -> None:
    agent = resumed_agent()
    # 5,000 bytes are not merged with others. The window has room for 13 of them.
    agent.feed(encode_port(1, 80) + encode_frame(DATA, 1, bytes(5_000)) * 13)
    assert list(map(len, agent.streams.received_parts(1))) == [5_000] * 13
    agent.streams.consume(1, 12_000)
    assert list(map(len, agent.streams.received_parts(1))) == [3_000] + [5_000] * 10
    agent.streams._streams[1].incoming.extend([b"x"] * 1_000)
    assert len(agent.streams.received_parts(1)) == PARTS_MAX
    assert agent.streams.received_parts(2) == []


def test_repeated_change_of_a_stream_is_returned_once() -> None:
    agent = resumed_agent()
    agent.feed(encode_port(1, 80) + encode_port(2, 80))
    one, other = encode_frame(DATA, 1, b"x"), encode_frame(DATA, 2, b"x")
    expected = [StreamChanged(1), StreamChanged(2), StreamChanged(1)]
    assert agent.feed(one + one + other + one + one) == expected


def test_equal_notices_are_both_returned() -> None:
    pair = connected_pair()
    for _ in range(2):
        pair.agent.notice("ends soon")
    pair.settle()
    assert pair.user_events[-2:] == [NoticeReceived("ends soon")] * 2


def test_flood_of_refused_streams_ends_the_session() -> None:
    agent = resumed_agent()
    for number in range(1, STREAMS_MAX + 1):
        agent.feed(encode_port(number, 80))
        agent.streams.reset(number, ResetReason.REFUSED)
    with pytest.raises(ProtocolError, match="refused streams"):
        agent.feed(encode_port(STREAMS_MAX + 1, 80))


def test_flood_of_pings_stores_few_answers() -> None:
    agent = resumed_agent()
    for _ in range(1_000):
        agent.feed(encode_frame(b"p"))
    assert len(agent._urgent) < 20


_KIND = st.sampled_from(sorted(KINDS))
_PAYLOADS = st.one_of(
    st.binary(max_size=20),
    st.integers(0, 2**32 - 1).map(lambda n: struct.pack(">I", n)),
    st.integers(0, 2**16 - 1).map(lambda n: struct.pack(">H", n)),
    st.integers(0, 2**64 - 1).map(lambda n: struct.pack(">Q", n)),
)


@given(frames=st.lists(st.tuples(_KIND, st.integers(0, 4), _PAYLOADS), max_size=40))
@settings(max_examples=300)
def test_hostile_frames_raise_protocol_errors_only(
    frames: list[tuple[bytes, int, bytes]],
) -> None:
    agent = resumed_agent()
    try:
        for kind, stream, payload in frames:
            agent.feed(encode_frame(kind, stream, payload))
            next_bytes(agent, 1 << 20)
    except ProtocolError:
        return
    assert len(agent.streams) <= 4


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_streams_arrive_unchanged_over_breaking_connections(seed: int) -> None:
    draw = random.Random(seed)
    pair = connected_pair()
    wanted: dict[int, bytes] = {}
    sent: dict[int, int] = {}
    got: dict[int, bytes] = {}
    for _ in range(draw.randint(1, 5)):
        stream = pair.user.streams.open_stream(draw.randint(1, 65_535))
        assert stream is not None
        wanted[stream] = draw.randbytes(draw.choice((0, 1, 1_000, 300_000)))
        sent[stream], got[stream] = 0, b""
    for _ in range(100_000):
        for stream, data in wanted.items():
            count = min(pair.user.streams.sendable(stream), draw.choice((1, 500, 100_000)))
            part = data[sent[stream] : sent[stream] + count]
            if part:
                pair.user.streams.send(stream, part)
                sent[stream] += len(part)
            if sent[stream] == len(data):
                pair.user.streams.end(stream)
            got[stream] += take(pair.agent, stream, draw.choice((0, 10, 100_000)))
        pair.step(draw.choice((1, 100, 10_000, 1 << 20)))
        if draw.random() < 0.05:
            pair.connect()
        if draw.random() < 0.2:
            pair.agent.acknowledge()
        assert pair.user.replay_memory_bytes < REPLAY_BYTES_MAX + 100_000
        if got == wanted and all(pair.agent.streams.has_ended(one) for one in wanted):
            break
    else:
        raise AssertionError("the bytes did not arrive")
    assert got == wanted
    assert {e.stream for e in pair.agent_events if isinstance(e, StreamChanged)} <= wanted.keys()
