"""The types of checkpoint stores, in a file each. `registry.py` finds a type by the file's name."""
