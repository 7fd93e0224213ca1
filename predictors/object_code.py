"""Machine code in a file: written by who compiled it, and taken up by another process.

All it takes to read is llvmlite (a thirtieth of a second, 50 MB of which 5 are not the library itself).
A file begins with the SHA-256 of the rest: LLVM ends the process that gives it half an object file.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steersman.traces.errors import ArtifactError

if TYPE_CHECKING:
    import llvmlite.binding as llvm

_DIGEST = hashlib.sha256().digest_size


class ObjectCode:
    """Machine code, ready to be called for as long as this lives.

    Args:
        data: an object file for this machine.
    """

    def __init__(self, data: bytes) -> None:
        import llvmlite.binding as llvm

        self._engine: Any = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self._engine.finalize_object()

    def addresses(self, names: Iterable[str]) -> list[int]:
        """Where these functions are.

        Raises:
            ArtifactError: one of them is not there.
        """
        found = [int(self._engine.get_function_address(name)) for name in names]
        if not all(found):
            raise ArtifactError("machine code lacks a function; compile it anew")
        return found


def target() -> llvm.TargetMachine:
    """This machine, all that its processor can do."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=3, jit=True
    )


def write_code(path: Path, data: bytes) -> None:
    """Put it there, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(hashlib.sha256(data).digest() + data)
            file.flush()
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise


def read_code(path: Path) -> bytes:
    """What `write_code` put there.

    Raises:
        ArtifactError: it is something else.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    data = content[_DIGEST:]
    if hashlib.sha256(data).digest() != content[:_DIGEST]:
        raise ArtifactError(f"{path}: is no machine code, or was damaged; delete it")
    return data
