"""What a person touches: the command line and the files that other programs read."""
