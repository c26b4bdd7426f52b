"""The searchers, one a file that is named as configurations name it; registry.py finds them."""
