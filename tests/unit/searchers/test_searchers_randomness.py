import numpy as np
import pytest

from control_plane.searchers.randomness import KEY_BYTES, KEY_WORDS, Generator

SEEDS = [0, 1, 5489, 2**31 - 1, 2**32 - 1]


def test_generator_draws_published_words() -> None:
    # ISO C++ fixes mt19937's default seed 5489 and its 10,000th word, 4123659995.
    generator = Generator.from_seed(5489)
    words = [generator.draw_word() for _ in range(10_000)]
    assert (words[0], words[-1]) == (3499211612, 4123659995)


@pytest.mark.parametrize("seed", SEEDS)
def test_seed_gives_state_of_numpy(seed: int) -> None:
    name, key, position, *_ = np.random.RandomState(seed).get_state(legacy=True)
    generator = Generator.from_seed(seed)
    assert name == "MT19937"
    assert generator.key == np.asarray(key, dtype="<u4").tobytes()
    assert generator.position == position == KEY_WORDS


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_draws_equal_numpy(seed: int) -> None:
    generator = Generator.from_seed(seed)
    expected = np.random.RandomState(seed).random_sample(1000).tolist()
    assert [generator.draw_uniform() for _ in range(1000)] == expected


@pytest.mark.parametrize(
    "n", [2, 3, 7, 8, 9, 1000, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40, 2**62 + 5]
)
def test_integers_equal_numpy(n: int) -> None:
    generator = Generator.from_seed(42)
    numpy_state = np.random.RandomState(42)
    for _ in range(300):
        assert generator.draw_below(n) == numpy_state.randint(n, dtype=np.int64)
    assert generator.position == numpy_state.get_state(legacy=False)["state"]["pos"]


def test_mixed_draws_stay_aligned_with_numpy() -> None:
    generator = Generator.from_seed(7)
    numpy_state = np.random.RandomState(7)
    for n in range(1, 400):
        assert generator.draw_below(n) == numpy_state.randint(n)
        assert generator.draw_uniform() == numpy_state.random_sample()
        assert generator.draw_word().to_bytes(4, "little") == numpy_state.bytes(4)


def test_single_choice_draws_no_word() -> None:
    generator = Generator.from_seed(3)
    generator.draw_word()
    assert generator.draw_below(1) == 0
    assert generator.position == 1


def test_key_changes_only_after_all_words_are_used() -> None:
    generator = Generator.from_seed(3)
    generator.draw_word()  # the seeded key is all used, so the first word twists it
    key = generator.key
    for _ in range(KEY_WORDS - 1):
        generator.draw_word()
        assert generator.key == key
    assert generator.position == KEY_WORDS
    generator.draw_word()
    assert generator.key != key
    assert generator.position == 1


@pytest.mark.parametrize("words", [0, 1, 623, 624, 625])
def test_restored_generator_continues(words: int) -> None:
    generator = Generator.from_seed(11)
    for _ in range(words):
        generator.draw_word()
    twin = Generator.from_state(generator.key, generator.position)
    assert [twin.draw_word() for _ in range(700)] == [generator.draw_word() for _ in range(700)]


def test_generators_do_not_share_state() -> None:
    one, other = Generator.from_seed(1), Generator.from_seed(1)
    one.draw_word()
    assert other.position == KEY_WORDS


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_rejects_seed_of_more_than_32_bits(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed {seed} is outside"):
        Generator.from_seed(seed)


@pytest.mark.parametrize(
    ("size", "position", "message"),
    [
        (KEY_BYTES - 4, 0, "key has 2492 bytes"),
        (KEY_BYTES, -1, "position -1"),
        (KEY_BYTES, 625, "position 625"),
    ],
)
def test_rejects_malformed_state(size: int, position: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Generator.from_state(bytes(size), position)


@pytest.mark.parametrize("n", [0, -3, 2**64 + 1])
def test_rejects_impossible_range(n: int) -> None:
    with pytest.raises(ValueError, match="below"):
        Generator.from_seed(1).draw_below(n)
