"""The grammar of the command line: words, options, completion, errors and exit codes."""
