"""Names of configuration values: equal in every process of an engine, and different for values that do different things.

Data is named by what it is, a function by what it is made of: its code without
places in files, its defaults, what it closes over and the globals that it uses.
What a function finds only when it runs (files, the environment) is in no name.
"""

import builtins
import dataclasses
import dis
import enum
import functools
import importlib.metadata
import importlib.util
import json
import logging
import os
import pathlib
import sys
import sysconfig
import types
from typing import Any

_DATA = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
_MAX_PARTS = 100_000
"""A value that is larger is not one that somebody configured."""


class UnnameableError(ValueError):
    """A value has no name that is surely its own; the message says which one."""


def name(value: Any) -> str:
    """Name a value.

    Raises:
        UnnameableError: what the value does can't be told from what it is made of.
    """
    try:
        return _text(_Namer().parts(value))
    except RecursionError:
        raise UnnameableError("data that contains itself, or is very deep") from None


def _text(parts: list) -> str:
    return json.dumps(parts, separators=(",", ":"))


class _Namer:
    """One naming: how much it has seen, and the functions that it is inside of."""

    def __init__(self) -> None:
        self._seen = 0
        self._within: list[types.FunctionType] = []

    def parts(self, value: Any) -> list:
        """Lists of text, and of such lists."""
        self._seen += 1
        if self._seen > _MAX_PARTS:
            raise UnnameableError(f"more than {_MAX_PARTS} values")
        kind = type(value)
        if kind in _DATA:
            return [kind.__name__, repr(value)]
        if isinstance(value, enum.Enum):
            return ["enum", value.name, self.parts(value.value)]
        if isinstance(value, str):
            return ["str", repr(str(value))]
        if isinstance(value, dict):
            return ["dict", sorted(([self.parts(k), self.parts(v)] for k, v in value.items()), key=_text)]
        if isinstance(value, (set, frozenset)):
            return ["set", sorted((self.parts(item) for item in value), key=_text)]
        if isinstance(value, (list, tuple)):
            return ["list" if isinstance(value, list) else "tuple", [self.parts(item) for item in value]]
        if isinstance(value, pathlib.PurePath):
            return ["path", str(value)]
        if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device"):
            return ["torch", str(value)]
        if dataclasses.is_dataclass(kind) and (kind.__module__.startswith("vllm.") or _installed(kind.__module__)):
            fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
            return ["data", _full_name(kind), self.parts(fields)]
        return self._does(value)

    def _does(self, value: Any) -> list:
        """Parts of what is no data."""
        if type(value) is functools.partial:
            return ["partial", self.parts(value.func), self.parts(value.args), self.parts(value.keywords)]
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, logging.Logger):
            return ["logger"]
        if isinstance(value, types.ModuleType) and (origin := _installed(value.__name__)):
            return ["module", value.__name__, origin]
        if isinstance(value, (type, types.BuiltinFunctionType)) and (origin := _installed(value.__module__)):
            return ["installed", _full_name(value), origin]
        what = f"module {value.__name__}" if isinstance(value, types.ModuleType) else f"a {_full_name(type(value))}"
        raise UnnameableError(what)

    def _function(self, function: types.FunctionType) -> list:
        code = function.__code__
        origin = _installed(function.__globals__.get("__name__"))
        if origin and function.__closure__ is None and code.co_qualname == function.__qualname__ and "<" not in code.co_qualname:
            return ["installed", f"{function.__globals__['__name__']}.{code.co_qualname}", origin]
        if function in self._within:
            return ["again", str(self._within.index(function))]
        self._within.append(function)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        made = [
            "function",
            f"{sys.version_info[0]}.{sys.version_info[1]}",
            self._code(code),
            self.parts(function.__defaults__),
            self.parts(function.__kwdefaults__),
            [[self.parts(item) for item in cell] for cell in cells],
            [[key, *self._global(function, key)] for key in sorted(_globals_of(code))],
        ]
        self._within.pop()
        return made

    def _code(self, code: types.CodeType) -> list:
        """The code without the places it is at: names of files, lines, what it is called."""
        consts = [self._code(c) if isinstance(c, types.CodeType) else self.parts(c) for c in code.co_consts]
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return ["code", code.co_code.hex(), code.co_exceptiontable.hex(), list(counts), [list(n) for n in names], consts]

    def _global(self, function: types.FunctionType, key: str) -> list:
        if key.startswith("import "):
            module = key.removeprefix("import ")
            if not (origin := _installed(module)):
                raise UnnameableError(f"module {module or 'of its own package'}")
            return [origin]
        if key in function.__globals__:
            return self.parts(function.__globals__[key])
        return ["built in" if hasattr(builtins, key) else "missing"]


def _content(cell: Any) -> list:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []  # a variable that was never set


def _globals_of(code: types.CodeType) -> set[str]:
    """The globals that code uses, and ``import X`` for the modules that it imports."""
    found = set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.add(step.argval)
        elif step.opname == "IMPORT_NAME":
            found.add(f"import {step.argval}")
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= _globals_of(const)
    return found


def _full_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _installed(module: str | None) -> str:
    """What is installed that a module is from, with its version; empty for code that may be edited.

    It does not matter whether this process has imported it.
    """
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"python {sys.version_info[0]}.{sys.version_info[1]}"
    try:
        found = importlib.util.find_spec(top)
        version = importlib.metadata.version(top)
    except (ImportError, ValueError):
        return ""
    places = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    file = (found and found.origin) or ""
    return f"{top} {version}" if any(file.startswith(f"{place}{os.sep}") for place in places) else ""
