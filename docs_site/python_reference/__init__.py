"""The reference of the Python API: docs/python, generated from docstrings and tested examples.

griffe reads the sources of `detcloud` without importing `detcloud`. `subjects` lists the pages and
their classes and functions, `entries` collects the facts of each name, and `markdown` renders them.
"""
