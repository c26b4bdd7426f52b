"""Answers on a terminal: tables, charts, progress lines, JSON, YAML and CSV."""
