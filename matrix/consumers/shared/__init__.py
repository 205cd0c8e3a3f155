"""Shared by the consumers: the installation, the files, requirement lines and shell scripts."""
