"""The documentation site: the Markdown of the repository as static pages, with checks."""
