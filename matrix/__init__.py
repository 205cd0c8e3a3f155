"""Resolve, build, check and publish PyTorch extension wheels for AMD ROCm.

Names are imported when they are first used, so that ``matrix --version`` does not import the whole program.
"""

TYPE_CHECKING = False  # importing typing would cost more than printing the version
if TYPE_CHECKING:
    from builders.findings import Finding
    from builders.index import Index
    from matrix.api import read_lock, resolve, write_lock
    from matrix.api_commands import build, check, explain, table
    from resolver.errors import MatrixError
    from resolver.model import Conflict, Resolution, Target
    from resolver.reporter import Reporter

__version__ = "0.1.0"

__all__ = [
    "Conflict",
    "Finding",
    "Index",
    "MatrixError",
    "Reporter",
    "Resolution",
    "Target",
    "build",
    "check",
    "explain",
    "read_lock",
    "resolve",
    "table",
    "write_lock",
]

_MODULES = {
    "Finding": "builders.findings",
    "Index": "builders.index",
    "MatrixError": "resolver.errors",
    "Conflict": "resolver.model",
    "Resolution": "resolver.model",
    "Target": "resolver.model",
    "Reporter": "resolver.reporter",
}

_OF_COMMANDS = {"build", "check", "explain", "table"}

_ANNOTATED = {
    "Conflict": "resolver.model",
    "Index": "builders.index",
    "ExplainDocument": "matrix.commands.explain",
    "Iterable": "collections.abc",
    "Judgement": "matrix.judging.verdict",
    "Resolution": "resolver.model",
    "TableDocument": "matrix.show.table_formats",
}
"""Types in the annotations of the functions, imported only for type checkers, to start faster."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'matrix' has no attribute {name!r}")
    from importlib import import_module

    functions = "matrix.api_commands" if name in _OF_COMMANDS else "matrix.api"
    module = import_module(_MODULES.get(name, functions))
    found = getattr(module, name)
    if name not in _MODULES:  # typing.get_type_hints looks for the types in the globals of the function
        annotations = " ".join(map(str, found.__annotations__.values()))
        for annotated, source in _ANNOTATED.items():
            if annotated in annotations:
                vars(module)[annotated] = getattr(import_module(source), annotated)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
