from random import Random

from hypothesis import given
from hypothesis import strategies as st

from detcloud.shared.event_parts import assemble_files, part_key

EVENTS = "run/events.out.tfevents.1.host.7.0"


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_a_growing_file_is_assembled_from_parts_of_all_epochs(
    sizes: list[list[int]], random: Random
) -> None:
    stored, expected = [], []
    for epoch, of_epoch in enumerate(sizes, 1):
        start = 0
        for size in of_epoch:
            stored.append((part_key(EVENTS, epoch, 0, start), size))
            expected.append((epoch, start, size))
            start += size
    random.shuffle(stored)
    [file] = assemble_files(stored)
    assert [(part.epoch, part.start, part.size) for part in file.parts] == expected
    assert (file.path, file.size, file.version) == (EVENTS, sum(map(sum, sizes)), "")


def test_a_growing_file_uses_the_last_version_per_epoch() -> None:
    stored = [
        (part_key(EVENTS, 1, 0, 0), 9),
        (part_key(EVENTS, 1, 1, 0), 5),
        (part_key(EVENTS, 1, 1, 5), 2),
        (part_key(EVENTS, 3, 0, 0), 4),
    ]
    [file] = assemble_files(stored)
    parts = [(part.epoch, part.version, part.start) for part in file.parts]
    assert parts == [(1, 1, 0), (1, 1, 5), (3, 0, 0)]


def test_a_rewritten_file_uses_the_overall_last_version() -> None:
    path = "plugins/profile/trace.json"
    stored = [(part_key(path, epoch, version, 0), 7) for epoch, version in ((1, 3), (2, 0), (2, 1))]
    [file] = assemble_files(stored)
    assert [(part.epoch, part.version) for part in file.parts] == [(2, 1)]
    assert file.version == "2.1"


def test_parts_after_a_missing_part_are_omitted() -> None:
    stored = [(part_key(EVENTS, 1, 0, start), 5) for start in (0, 5, 15)]
    [file] = assemble_files(stored)
    assert file.size == 10
    assert assemble_files([(part_key(EVENTS, 1, 0, 5), 5)]) == []


def test_a_file_without_part_names_is_a_single_part() -> None:
    stored = [("b/part-of-a-name", 3), (EVENTS, 8)]
    assert [(file.path, file.size, file.parts[0].key) for file in assemble_files(stored)] == [
        ("b/part-of-a-name", 3, "b/part-of-a-name"),
        (EVENTS, 8, EVENTS),
    ]
