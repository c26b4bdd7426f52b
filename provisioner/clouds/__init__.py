"""The clouds that instances come from, one file each, behind one protocol."""
