"""Functions in numba (extra ``fast``) as machine code that is kept between processes.

Importing numba and loading what it keeps takes as long as simulating dozens of steps; llvmlite, which numba rests on,
loads machine code in a tenth of that. So numba is asked once on a machine, and the object file that comes of it is kept
next to the code, or else where numba keeps its own.
"""

import ctypes
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import llvmlite
import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from traincast.errors import ProgramError

_PLAIN: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of `numba.njit` for what has no business with Python."""
_DTYPES: Mapping[str, np.dtype[Any]] = {"i": np.dtype(np.int32), "l": np.dtype(np.int64), "d": np.dtype(np.float64)}
"""Arrays by the letter of their type; ``n`` is a count."""
_ENTRY = "kernel"
"""Name of the function in an object file."""


Called = TypeVar("Called", bound=Callable[..., object])


def part(function: Called) -> Called:
    """Let kernels call a function; to be used where numba may be imported."""
    import numba

    return cast("Called", numba.njit(**_PLAIN)(function))


class CompiledKernel:
    """A function of arrays and counts, in machine code once it is called; it returns a whole number or nothing.

    Parameters
    ----------
    module, name : str
        Where it stands: a module that imports numba, and is imported where there is no machine code yet. It takes
        arrays as pointers, so it asks none for its length, and nothing in it can fail.
    letters : str
        One for each argument: ``i``, ``l`` and ``d`` are arrays of int32, int64 and float64, ``n`` is a count.

    Raises
    ------
    ProgramError
        When it is called, if the numba that is installed compiles it to something else than a plain function.
    """

    def __init__(self, module: str, name: str, letters: str) -> None:
        self._module, self._name, self._letters = module, name, letters
        self._loaded: _Loaded | None = None

    def __call__(self, *given: npt.NDArray[Any] | int) -> int:
        """Return what it finds, 0 where that is nothing."""
        # Held while it runs: another thread may load it meanwhile, too, and nobody else would hold this one.
        loaded = self._loaded = self._loaded or self._load()
        found = ctypes.c_int64(0)
        loaded.call(ctypes.byref(found), None, *map(_argument, self._letters, given))
        return found.value

    def _load(self) -> "_Loaded":
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(self._object()))
        engine.finalize_object()
        # As numba calls functions: where the result goes, where an error would, then what is given.
        kinds = [ctypes.c_ssize_t if letter == "n" else ctypes.c_void_p for letter in self._letters]
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *kinds)
        return _Loaded(prototype(engine.get_function_address(_ENTRY)), engine)

    def _object(self) -> bytes:
        """Return its object file: the one that is kept, or else one that is made now."""
        spec = find_spec(self._module)
        source = Path(spec.origin if spec and spec.origin else __file__)
        sources = source.read_bytes(), Path(__file__).read_bytes()
        of = (*sources, self._name, self._letters, llvmlite.__version__, *_processor())
        name = f"{self._name}-{hashlib.sha256(repr(of).encode()).hexdigest()[:24]}.o"
        for folder in _folders(source):
            with suppress(OSError, ValueError):
                return _read(folder / name)
        made = _compiled(getattr(import_module(self._module), self._name), self._letters)
        for folder in _folders(source):
            with suppress(OSError):
                _write(folder / name, made)
                break
        return made


class _Loaded(NamedTuple):
    """Machine code in memory."""

    call: Callable[..., int]
    engine: llvm.ExecutionEngine
    """What holds it: gone with the last one who does."""


def _argument(letter: str, given: npt.NDArray[Any] | int) -> int:
    if letter == "n" and not isinstance(given, np.ndarray):
        return given
    if not isinstance(given, np.ndarray) or given.dtype != _DTYPES.get(letter) or not given.flags.c_contiguous:
        raise TypeError(f"{given!r} is not an array of {_DTYPES.get(letter)} without gaps")
    return given.ctypes.data


@cache
def _processor() -> tuple[str, str]:
    """Return the name of the processor and what it can do: machine code runs on no other."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _machine() -> llvm.TargetMachine:
    cpu, features = _processor()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=3, codemodel="jitdefault", jit=True)


def _compiled(function: Callable[..., object], letters: str) -> bytes:
    """Return the object file that numba makes of a function."""
    import numba

    types: Any = numba.types
    pointers = {letter: types.CPointer(getattr(types, dtype.name)) for letter, dtype in _DTYPES.items()}
    made = numba.njit(tuple(pointers.get(letter, types.intp) for letter in letters), **_PLAIN)(function)
    (text,) = made.inspect_llvm().values()
    module = llvm.parse_assembly(text)
    entries = [each for each in module.functions if each.linkage == llvm.Linkage.external and not each.is_declaration]
    foreign = [each for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")]
    if len(entries) != 1 or foreign or len(list(entries[0].arguments)) != len(letters) + 2:
        text = f"numba {numba.__version__} makes no plain function of {function.__name__}; take another release of it"
        raise ProgramError(text)
    entries[0].name = _ENTRY
    return bytes(_machine().emit_object(module))


def _folders(source: Path) -> Iterator[Path]:
    """Yield where machine code may be kept, best first; where no home is known there is one less."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    yield Path(given) if given else source.parent / "__pycache__"
    with suppress(RuntimeError):
        yield Path.home() / ".cache" / "numba" / "traincast"


def _read(path: Path) -> bytes:
    """Return an object file, which follows its own digest: one that is damaged would end the process."""
    kept = path.read_bytes()
    digest, code = kept[:32], kept[32:]
    if hashlib.sha256(code).digest() != digest:
        raise ValueError(path)
    return code


def _write(path: Path, code: bytes) -> None:
    """Keep an object file, whole from its first moment on: other processes look for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unnamed = path.with_suffix(f".{os.getpid()}")
    unnamed.write_bytes(hashlib.sha256(code).digest() + code)
    unnamed.replace(path)
