"""The program that checks cluster configurations; see pools.py for what they are."""
