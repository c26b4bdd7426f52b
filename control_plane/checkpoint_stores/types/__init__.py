"""The types of checkpoint stores, a file per type; `registry.py` imports every module here."""
