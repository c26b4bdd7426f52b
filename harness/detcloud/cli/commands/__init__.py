"""The commands: a module for each noun or verb."""
