"""The tour: a few journeys of a message through the real product, recorded hop by hop.

`make tour JOURNEY=create` prints a journey. ARCHITECTURE.md shows all of them, and
`python -m tests.tour --write` renews the document.
"""
