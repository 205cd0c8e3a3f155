"""The commands: one thin module for each."""
