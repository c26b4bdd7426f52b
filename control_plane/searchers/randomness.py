"""The generator of a search: MT19937, bit for bit the legacy numpy.random.RandomState.

Source: Matsumoto and Nishimura, "Mersenne Twister" (1998). The standard library carries the same
generator, seeded in another way; only this module may import it, with its state set explicitly.
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
    """A stream of random words whose state is a key and a position in it.

    The key changes only when all of its 624 words are used (a twist), the position with every word,
    so a caller stores the two apart: `key` rarely, `position` after every draw.
    """

    __slots__ = ("_drawn", "_key", "_position", "_twisted")

    def __init__(self, key: bytes, position: int) -> None:
        """Take a key of 2496 bytes and a position in 0..624; `from_seed` makes the key."""
        self._key = key
        self._position = position
        # Unpacking the key costs more than most events draw: it waits for the first word.
        self._drawn: random.Random | None = None
        # To ask it for its state costs as much again: the words are counted instead.
        self._twisted = False

    @classmethod
    def from_seed(cls, seed: int) -> "Generator":
        """Start as RandomState(seed) does; ValueError unless 0 <= seed < 2**32."""
        if not 0 <= seed <= _WORD_MAX:
            raise ValueError(f"seed {seed} is outside 0..{_WORD_MAX}; use a 32 bit seed")
        words = [seed]
        for i in range(1, KEY_WORDS):
            last = words[-1]
            words.append((_INIT_MULTIPLIER * (last ^ (last >> 30)) + i) & _WORD_MAX)
        return cls(_KEY.pack(*words), KEY_WORDS)

    @classmethod
    def from_state(cls, key: bytes, position: int) -> "Generator":
        """Continue from `key` (2496 bytes, little-endian words) and `position` (0..624).

        ValueError for a key of another size or a position out of range.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"generator key has {len(key)} bytes; expected {KEY_BYTES}")
        if not 0 <= position <= KEY_WORDS:
            raise ValueError(f"generator position {position} is outside 0..{KEY_WORDS}")
        return cls(key, position)

    @property
    def key(self) -> bytes:
        """The 624 words of the state, little-endian: 2496 bytes."""
        if self._drawn is None or not self._twisted:
            return self._key
        return _KEY.pack(*self._drawn.getstate()[1][:KEY_WORDS])

    @property
    def position(self) -> int:
        """How many words of the key are used, 0..624; at 624 the next word twists the key."""
        return self._position

    def draw_word(self) -> int:
        """Draw 32 bits."""
        return self._take_words(1).getrandbits(32)

    def draw_uniform(self) -> float:
        """Draw from [0, 1) with 53 bits: two words; equal to RandomState.random_sample()."""
        return self._take_words(2).random()

    def draw_below(self, n: int) -> int:
        """Draw an integer in [0, n) as RandomState.randint(n) does; 1 <= n <= 2**64.

        Masks and rejects, so the number of words varies; n == 1 draws nothing.
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
        """Return the source of the next `count` words, at most 624, and count them as drawn."""
        if self._drawn is None:
            self._drawn = random.Random(0)
            state = (*_KEY.unpack(self._key), self._position)
            self._drawn.setstate((_STATE_VERSION, state, None))
        self._position += count
        if self._position > KEY_WORDS:
            self._position -= KEY_WORDS
            self._twisted = True
        return self._drawn
