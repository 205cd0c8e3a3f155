"""What a wheel was made from: as a bill of materials inside it, as provenance beside it.

`Materials` says it once; `sbom` and `statement` write it in the forms that other tools read.
"""

from builders.provenance.materials import (
    Distribution,
    GitSource,
    Image,
    Materials,
    Patch,
    Program,
    SdistSource,
    Submodule,
)
from builders.provenance.sbom import SBOM_NAME, sbom
from builders.provenance.statement import Run, Statement, build_key_of, read_statement, statement
from resolver.errors import ProvenanceError

__all__ = [
    "SBOM_NAME",
    "Distribution",
    "GitSource",
    "Image",
    "Materials",
    "Patch",
    "Program",
    "ProvenanceError",
    "Run",
    "SdistSource",
    "Statement",
    "Submodule",
    "build_key_of",
    "read_statement",
    "sbom",
    "statement",
]
