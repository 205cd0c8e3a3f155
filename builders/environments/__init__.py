"""Where wheels are built and tried: the target's Python, torch and build requirements as shared layers.

One way down: `python` finds the interpreter, `wheelhouse` fetches wheels (the only step that uses the
network), `layer` installs them once into a read-only directory, `task` puts an environment on top of
layers in a moment.
"""
