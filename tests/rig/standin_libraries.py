"""STAND-INS for the ROCm libraries that an image lacks, made from what real shared objects need of them.

Run in the image: ``python standin_libraries.py OUT OBJECT...``. What the image has is used as it is, such as
HIP's runtime. For each other library that the objects name, and for each empty stand-in of
``make-base-image.sh``, a library of this name is compiled. Each of them defines all functions, with their
symbol versions, that the objects need and no library of the image defines: an object does not say which
library has a function without version. Each function returns 1, as AMD's libraries do after an error. No GPU
is imitated.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

FOLDERS = (Path("/opt/rocm/lib"), Path("/usr/lib/x86_64-linux-gnu"))
"""Where the loader looks for libraries: the first is in the run path of the plugins."""
OF_PYTHON = ("Py", "_Py")
_HIP = "libamdhip64.so"
"""All of AMD's libraries need it, and some objects have it only through them."""


def make(out: Path, objects: list[Path]) -> list[str]:
    """Write the libraries that the objects need and the image lacks, and return their names."""
    needed = {name for path in objects for name in _needed(path)}
    found = {name: path for name in needed if (path := _found(name))}
    defined = {name: set(_symbols(path, is_defined=True)) for name, path in found.items()}
    real = {name for name, symbols in defined.items() if symbols}
    provided = {symbol for symbols in defined.values() for symbol, _, _ in symbols}
    missing = sorted(needed - real)
    functions = {
        (symbol, version)
        for path in objects
        for symbol, library, version in _symbols(path, is_defined=False)
        if symbol not in provided and not symbol.startswith(OF_PYTHON) and library not in real
    }
    out.mkdir(parents=True, exist_ok=True)
    source, script = out / "functions.c", out / "versions.map"
    source.write_text("".join(f"int {symbol}(void) {{ return 1; }}\n" for symbol, _ in sorted(functions)))
    by_version: dict[str, list[str]] = {}
    for symbol, version in sorted(functions):
        by_version.setdefault(version, []).append(f"{symbol};")
    by_version.pop("", None)  # these need no entry
    nodes = [f"{version} {{ {' '.join(symbols)} }};\n" for version, symbols in by_version.items()]
    script.write_text("".join(nodes) or "{ global: *; };\n")
    hip = ["-Wl,--no-as-needed", *(str(path) for name, path in found.items() if name.startswith(_HIP))]
    for name in missing:
        command = [
            "gcc",
            "-shared",
            "-nostdlib",
            "-w",
            f"-Wl,-soname,{name}",
            f"-Wl,--version-script={script}",
        ]
        subprocess.run([*command, "-o", str(out / name), str(source), *hip], check=True)
    source.unlink()
    script.unlink()
    return missing


def _found(name: str) -> Path | None:
    return next((folder / name for folder in FOLDERS if (folder / name).exists()), None)


def _needed(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if isinstance(section, DynamicSection):
                yield from (tag.needed for tag in section.iter_tags("DT_NEEDED"))  # type: ignore[attr-defined]


def _symbols(path: Path, *, is_defined: bool) -> Iterator[tuple[str, str, str]]:
    """Yield name, library and version of each global symbol that an object defines, or that it needs."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        versions = {
            version["vna_other"]: (str(library.name), version.name)
            for section in elf.iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for library, group in section.iter_versions()
            for version in group
        }
        table = elf.get_section_by_name(".dynsym")
        numbers = elf.get_section_by_name(".gnu.version")
        assert isinstance(table, SymbolTableSection)
        for place, symbol in enumerate(table.iter_symbols()):
            kinds = {"STB_GLOBAL", "STB_WEAK"} if is_defined else {"STB_GLOBAL"}
            is_here = symbol["st_shndx"] != "SHN_UNDEF"
            if symbol.name and is_here == is_defined and symbol["st_info"]["bind"] in kinds:
                number = numbers.get_symbol(place)["ndx"] if isinstance(numbers, GNUVerSymSection) else 0
                yield symbol.name, *versions.get(number, ("", ""))


if __name__ == "__main__":
    names = make(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    sys.stdout.write("\n".join(names))
