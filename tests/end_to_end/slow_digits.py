"""The digits example with slow batches that need no processor."""

import shutil
from pathlib import Path

from tests.end_to_end.laptop import DIGITS


def copy_slow_digits(folder: Path, batch_seconds: float) -> Path:
    """Return a copy of the example in `folder` with `batch_seconds` more per batch."""
    code = folder / "slow"
    shutil.copytree(DIGITS, code)
    model = code / "model_def.py"
    line = "        loss = nn.functional.cross_entropy(self.model(images), labels)\n"
    slower = f"        __import__('time').sleep({batch_seconds})\n"
    text = model.read_text()
    assert line in text
    model.write_text(text.replace(line, slower + line))
    return code
