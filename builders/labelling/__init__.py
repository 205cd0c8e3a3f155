"""Labels: what a finished wheel says of itself, written into its name, metadata and record.

`label_wheel` is the whole of it. `pins` decides the requirements, `metadata` edits the headers,
`archive` writes the zip file, `raw` reads the wheel that the build backend made.
"""

from builders.labelling.pins import Pin, PinStyle, runtime_pins
from builders.labelling.rewriting import Labelled, Labels, label_wheel
from resolver.errors import RawWheelError

__all__ = ["Labelled", "Labels", "Pin", "PinStyle", "RawWheelError", "label_wheel", "runtime_pins"]
