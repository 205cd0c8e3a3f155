"""Where the programs of a build run: on this machine, or inside a base image."""
