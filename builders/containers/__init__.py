"""The runtimes in which the programs of a build run: this machine, or a base image."""
