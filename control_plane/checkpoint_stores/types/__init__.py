"""The types of checkpoint stores, one file each; `registry.py` finds them here."""
