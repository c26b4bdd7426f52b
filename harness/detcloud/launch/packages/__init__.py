"""The Python environment of a trial, and layers of installed packages that trials share."""
