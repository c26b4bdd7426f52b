"""The random generator of a search: MT19937, with the same output as numpy.random.RandomState.

Source: Matsumoto and Nishimura, "Mersenne Twister" (1998). The standard library's `random` uses the
same algorithm with a different seeding. Only this module may import `random`, and sets the state
explicitly.
"""

import random
import struct

KEY_WORDS = 624
KEY_BYTES = 4 * KEY_WORDS

_KEY = struct.Struct(f"<{KEY_WORDS}I")
_WORD_MAX = 0xFFFFFFFF
_INIT_MULTIPLIER = 1812433253
# The state tuple's version that the standard library has used since Python 3.2.
_STATE_VERSION = 3


class Generator:
    """A stream of random 32 bit words. The state is a key of 624 words and a position in the key.

    Every drawn word changes the position. The key changes only after all 624 words are used (a
    twist). A caller therefore stores `key` rarely, and `position` after every draw.
    """

    __slots__ = ("_drawn", "_key", "_position", "_twisted")

    def __init__(self, key: bytes, position: int) -> None:
        """Set the state without a check; `from_state` checks the arguments.

        Args:
            key: 2496 bytes: 624 little-endian words.
            position: the number of used words of the key, 0 to 624.
        """
        self._key = key
        self._position = position
        # Unpacking the key costs more time than the draws of most events. The generator therefore
        # unpacks the key at the first draw.
        self._drawn: random.Random | None = None
        # Whether the key has changed: `getstate` would cost as much time as unpacking the key.
        self._twisted = False

    @classmethod
    def from_seed(cls, seed: int) -> "Generator":
        """Return a generator that draws the same numbers as numpy's RandomState(seed).

        Raise ValueError unless 0 <= seed < 2**32.
        """
        if not 0 <= seed <= _WORD_MAX:
            raise ValueError(f"seed {seed} is outside 0..{_WORD_MAX}; use a 32 bit seed")
        words = [seed]
        for i in range(1, KEY_WORDS):
            last = words[-1]
            words.append((_INIT_MULTIPLIER * (last ^ (last >> 30)) + i) & _WORD_MAX)
        return cls(_KEY.pack(*words), KEY_WORDS)

    @classmethod
    def from_state(cls, key: bytes, position: int) -> "Generator":
        """Return a generator that continues from a stored state; arguments as in `__init__`.

        Raise ValueError for a key of another size or a position out of range.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"generator key has {len(key)} bytes; expected {KEY_BYTES}")
        if not 0 <= position <= KEY_WORDS:
            raise ValueError(f"generator position {position} is outside 0..{KEY_WORDS}")
        return cls(key, position)

    @property
    def key(self) -> bytes:
        """Return the 624 words of the state, little-endian: 2496 bytes."""
        if self._drawn is None or not self._twisted:
            return self._key
        return _KEY.pack(*self._drawn.getstate()[1][:KEY_WORDS])

    @property
    def position(self) -> int:
        """Return the number of used words of the key, 0 to 624. At 624, the next draw changes the
        key.
        """
        return self._position

    def draw_word(self) -> int:
        """Draw an integer of 32 random bits."""
        return self._take_words(1).getrandbits(32)

    def draw_uniform(self) -> float:
        """Draw a number from [0, 1) with 53 random bits, from two words.

        Equal to RandomState.random_sample().
        """
        return self._take_words(2).random()

    def draw_below(self, n: int) -> int:
        """Draw an integer in [0, n), equal to RandomState.randint(n).

        Uses a varying number of words, because too large values are drawn again. For n == 1, return
        0 without a draw. Raise ValueError unless 1 <= n <= 2**64.
        """
        top = n - 1
        if not 0 <= top < 1 << 64:
            raise ValueError(f"cannot draw an integer below {n}; expected 1..2**64")
        if top == 0:
            return 0
        mask = (1 << top.bit_length()) - 1
        while True:
            value = (
                self.draw_word() if top <= _WORD_MAX else self.draw_word() << 32 | self.draw_word()
            )
            if (value := value & mask) <= top:
                return value

    def _take_words(self, count: int) -> random.Random:
        """Advance the position by `count` words, at most 624, and return the generator of the
        standard library. The caller must draw exactly `count` words from the returned generator.
        """
        if self._drawn is None:
            self._drawn = random.Random(0)
            state = (*_KEY.unpack(self._key), self._position)
            self._drawn.setstate((_STATE_VERSION, state, None))
        self._position += count
        if self._position > KEY_WORDS:
            self._position -= KEY_WORDS
            self._twisted = True
        return self._drawn
