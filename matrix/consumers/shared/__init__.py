"""What the consumers share: the installation, the files, requirement lines and shell scripts."""
