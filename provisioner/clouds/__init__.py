"""The clouds that instances come from, one folder each, behind one protocol."""
