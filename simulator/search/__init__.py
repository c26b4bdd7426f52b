"""The command that previews the search of a configuration, also on recorded curves."""
