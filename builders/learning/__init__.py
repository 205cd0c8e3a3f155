"""Learn facts by reading files: what a program can read, nobody has to type."""
