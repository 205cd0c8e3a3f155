"""Environments that wheels are built and tested in: the target's Python, with torch and build requirements.

`python` finds the interpreter. `wheelhouse` downloads wheels and is the only step that uses the network.
`layers` installs them once into shared read-only directories and creates environments on top of these.
"""
