"""Determined's import name for training code that was written for it.

`names.py` says what each public name of Determined 0.12 to 0.38.1 is here, or what to write
instead; `modules.py` makes modules of that; `path.py` puts them first on a trial's path.
"""
