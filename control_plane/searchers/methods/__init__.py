"""The searchers, one module for each, named as in configurations; registry.py finds the modules."""
