"""Pythons, compilers and cores of this machine; starting and ending programs."""
