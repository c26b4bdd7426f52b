"""A window of the browser that counts what a user does in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple


class Counts(NamedTuple):
    """The actions of a user for a task."""

    clicks: int
    """Presses of the mouse button. A double click is two clicks."""
    keys: int
    """Chords such as Ctrl Enter, and typed texts of any length."""
    scrolls: int
    """Scrolls to something outside the window."""


class CountedWindow:
    """A window in which each action waits for its element, and is counted."""

    def __init__(self, window: Any) -> None:
        self.window = window
        self._clicks = self._keys = self._scrolls = 0

    @property
    def counts(self) -> Counts:
        """The actions so far."""
        return Counts(self._clicks, self._keys, self._scrolls)

    def click(self, element: Any, held_key: str = "") -> None:
        """Scroll to the first of the elements if need be, and click it, perhaps with a held key."""
        self._clicks += 1
        self._keys += bool(held_key)
        self._reach(element)
        element.first.click(modifiers=[held_key] if held_key else [])

    def point_at(self, element: Any) -> None:
        """Move the pointer to the first of the elements, which is not counted."""
        element.first.hover()

    def click_link(self, name: str, within: Any = None) -> None:
        """Click the link with this text, by default one of the whole window."""
        self.click((within or self.window).get_by_role("link", name=name, exact=True))

    def click_button(self, name: str, within: Any = None) -> None:
        """Click the button with this text, by default one of the whole window."""
        self.click((within or self.window).get_by_role("button", name=name, exact=True))

    def press(self, chord: str) -> None:
        """Press keys together."""
        self._keys += 1
        self.window.keyboard.press(chord)

    def type(self, text: str) -> None:
        """Type a text where the cursor is."""
        self._keys += 1
        self.window.keyboard.type(text)

    def replace_number(self, area: Any, before: str, number: str) -> None:
        """Double-click the number behind a text of a text area, and type another number."""
        self._clicks += 2
        self._reach(area)
        start, is_hidden = area.evaluate(SELECT_NUMBER, before)
        assert start >= 0, f"the text has no {before}"
        self._scrolls += is_hidden
        self.type(number)

    def save_file(self, element: Any) -> Path:
        """Click an element that saves a file; return the file when it is complete."""
        with self.window.expect_download() as saved:
            self.click(element)
        return Path(saved.value.path())

    def see(self, element: Any) -> None:
        """Wait until the first of the elements is visible, and scroll to it if need be."""
        self._reach(element)

    def _reach(self, element: Any) -> None:
        """Scroll to an element, and count the scroll, unless a part of it is in the window."""
        element.first.wait_for()
        # Windows that slide in are outside at first.
        element.first.element_handle().wait_for_element_state("stable")
        if not element.first.evaluate(IS_IN_WINDOW):
            self._scrolls += 1
            element.first.scroll_into_view_if_needed()


# Whether half of an element, or half of the window with a larger element, is in sight: within the
# window and all boxes that scroll.
IS_IN_WINDOW = """
(element) => {
  const box = element.getBoundingClientRect();
  let [left, top, right, bottom] = [
    Math.max(box.left, 0), Math.max(box.top, 0),
    Math.min(box.right, innerWidth), Math.min(box.bottom, innerHeight),
  ];
  for (let outer = element.parentElement; outer; outer = outer.parentElement) {
    const { overflow, position } = getComputedStyle(outer);
    if (/(auto|scroll)/.test(overflow)) {
      const limit = outer.getBoundingClientRect();
      [left, top] = [Math.max(left, limit.left), Math.max(top, limit.top)];
      [right, bottom] = [Math.min(right, limit.right), Math.min(bottom, limit.bottom)];
    }
    // A dialog above the page is not within the boxes of the page.
    if (position === 'fixed') break;
  }
  const isWide = right - left >= Math.min(box.width, innerWidth) / 2;
  return isWide && bottom - top >= Math.min(box.height, innerHeight) / 2;
}
"""
# Select the number behind a text, and tell whether its line was outside the area.
SELECT_NUMBER = """
(area, before) => {
  const start = area.value.indexOf(before) + before.length;
  if (start < before.length) return [-1, false];
  const size = /^[^\\s,}]*/.exec(area.value.slice(start))[0].length;
  const line = area.value.slice(0, start).split('\\n').length;
  const below = line * parseFloat(getComputedStyle(area).lineHeight);
  const isHidden = below > area.scrollTop + area.clientHeight;
  area.focus();
  area.setSelectionRange(start, start + size);
  return [start, isHidden];
}
"""
