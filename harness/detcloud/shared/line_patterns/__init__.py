"""Regular expressions over lines of a log, in the syntax of RE2 and in linear time."""
