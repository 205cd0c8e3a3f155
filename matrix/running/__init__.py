"""Running a command so that it sees the index: which way, and with which variables."""
