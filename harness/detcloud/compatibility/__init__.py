"""The package that trials import as `determined`, for training code written for Determined.

`names.py` maps each public name of Determined 0.12 to 0.38.1 to an object here, or to a text with
the replacement. `modules.py` builds modules from this table. `path.py` puts the modules first on a
trial's path.
"""
