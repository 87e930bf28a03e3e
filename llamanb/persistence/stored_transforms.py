"""Transforms as they are stored: where they can be imported from, and the parameters that they were made with.

A file may come from anywhere, so nothing that it names is imported: only what the user's own code has brought in, or
listed, is looked up.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from llamanb import transforms as own
from llamanb.errors import HistoryFormatError, TransformError
from llamanb.messages import storable
from llamanb.transforms import (
    Composed,
    Transforms,
    check_history_transform,
    check_input_transform,
    check_output_transform,
    compose,
    transform_name,
)
from llamanb.wording import sentence

__all__ = ["Known", "dump_transforms", "load_transforms"]

_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_OWN = own.__name__
_COMPOSE = f"{_OWN}:{compose.__name__}"
_METHODS = {"input": ("__call__",), "output": ("__call__",), "history": ("to_text", "from_text")}
_CHECKS: dict[str, Callable[[object], None]] = {
    "input": check_input_transform,
    "output": check_output_transform,
    "history": check_history_transform,
}


# -- writing -----------------------------------------------------------------------------------------------------


def dump_transforms(transforms: Transforms) -> dict[str, Any]:
    """Return the stored form of a session's transforms; empty where it has none.

    Raises
    ------
    TransformError
        One of them could not be found again: a lambda, a function inside of another one, a method of an object.
    """
    stored: dict[str, Any] = {}
    if transforms.input:
        stored["input"] = [_dumped("input", transform) for transform in transforms.input]
    if transforms.output is not None:
        stored["output"] = _dumped("output", transforms.output)
    if transforms.history is not None:
        stored["history"] = _dumped("history", transforms.history)
    return stored


def _dumped(kind: str, transform: Any) -> dict[str, Any]:
    if isinstance(transform, Composed):
        return {"import": _COMPOSE, "transforms": [_dumped(kind, stage) for stage in transform.transforms]}
    named = hasattr(transform, "__qualname__") and not isinstance(transform, type)
    target = transform if named else type(transform)
    home = getattr(target, "__objclass__", target)  # str.upper knows its class, and no module
    module, name = getattr(home, "__module__", None), str(target.__qualname__)
    what = f"The {kind} transform {transform_name(transform)!r} cannot be saved"
    if isinstance(transform, functools.partial):
        raise TransformError(f"{what}: write it as a function of its own, or a class with these parameters.")
    if "<lambda>" in name:
        raise TransformError(f"{what}: a lambda has no name to find it by again. Write it with def.")
    if "<locals>" in name:
        raise TransformError(f"{what}: it stands inside a function. Define it at the top of a cell or a module.")
    if not isinstance(module, str) or not _stands(module, name, target):
        raise TransformError(
            f"{what}: nothing of that name is found in {module or 'a module'}. Give a function or an object of a class "
            "that has a name there."
        )
    stored: dict[str, Any] = {"import": f"{module}:{name}"}
    if not named and (parameters := _parameters(transform, what)):
        stored["parameters"] = parameters
    return stored


def _stands(module: str, name: str, target: object) -> bool:
    """Whether a name leads to what it is to lead to; a cell of a notebook may have been run again since."""
    found = _attribute(sys.modules.get(module), name)
    if inspect.ismethod(target):
        return bool(found == target)  # of a class; one of an object is found nowhere
    return found is target or (module == "__main__" and isinstance(found, type) == isinstance(target, type))


def _attribute(module: ModuleType | None, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _parameters(transform: object, what: str) -> dict[str, Any]:
    try:
        signature = inspect.signature(type(transform))
    except ValueError:
        raise TransformError(f"{what}: it does not say which parameters it was made with.") from None
    parameters = {}
    for parameter in signature.parameters.values():
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TransformError(f"{what}: its parameter {name!r} cannot be given by name.")
        if not hasattr(transform, name):
            raise TransformError(
                f"{what}: it was made with a parameter {name!r}, and has no attribute of that name to read it from."
            )
        try:
            value = storable(getattr(transform, name))
            if parameter.default is parameter.empty or value != storable(parameter.default):
                parameters[name] = value
        except HistoryFormatError as error:
            raise TransformError(f"{what}: of its parameter {name!r}, {error.problem}.") from None
    return parameters


# -- reading -----------------------------------------------------------------------------------------------------


@dataclass
class Known:
    """What stored transforms may be.

    Parameters
    ----------
    namespaces
        The names of the user's own code.
    listed
        Names of modules that may be imported for this, and functions and classes that may be used.
    """

    namespaces: Sequence[Mapping[str, Any]] = ()
    listed: Iterable[Any] = ()
    _values: list[Any] = field(init=False)
    _modules: set[str] = field(init=False)
    _importable: set[str] = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.listed, (str, ModuleType)) or not isinstance(self.listed, Iterable):
            raise TypeError(
                f"transforms is True, False, or a list of names of modules, not a {type(self.listed).__name__}."
            )
        listed = list(self.listed)
        self._values = [value for namespace in self.namespaces for value in list(namespace.values())]
        self._values += [item for item in listed if not isinstance(item, str)]
        modules = {value.__name__ for value in self._values if isinstance(value, ModuleType)}
        self._modules = {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}
        self._importable = {item for item in listed if isinstance(item, str)}
        self._importable |= {item.__name__ for item in listed if isinstance(item, ModuleType)}

    def find(self, path: str) -> Any:
        """Return what an import path leads to.

        Raises
        ------
        TransformError
            It leads nowhere, or to something that the user's code has neither imported nor listed.
        """
        module, _, name = path.partition(":")
        if module == "__main__":
            found = next((f for f in (_defined(n, name) for n in self.namespaces) if f is not None), None)
            if found is None:
                raise _unusable(path, f"it was defined in a notebook or script; define {name} here first")
            return found
        if _within(module, self._importable):
            try:
                importlib.import_module(module)
            except Exception as error:
                raise _unusable(path, f"importing {module} failed: {sentence(error).removesuffix('.')}") from error
        found = _attribute(sys.modules.get(module), name)
        if self._trusts(module, name, found):
            if found is None:
                raise _unusable(path, f"there is no {name} in {module}")
            return found
        raise _unusable(
            path, f"your code has not imported it; import {module} first, or list it as transforms=[{module!r}]"
        )

    def _trusts(self, module: str, name: str, found: object) -> bool:
        if module == "builtins":
            return name.startswith("str.")
        if module == _OWN:
            return name in own.__all__
        if found is not None and any(found is value for value in self._values):
            return True
        stands_there = found is None or getattr(found, "__module__", None) == module
        return _within(module, self._importable) or (_within(module, self._modules) and stands_there)


def _defined(namespace: Mapping[str, Any], name: str) -> Any:
    """Return what the user's own code defined under a name; ``None`` where it was not defined there, but imported."""
    first, *rest = name.split(".")
    found = namespace.get(first)
    for part in rest:
        found = vars(found).get(part) if isinstance(found, type) else None
    return found if getattr(found, "__module__", None) in ("__main__", namespace.get("__name__")) else None


def _within(module: str, names: Iterable[str]) -> bool:
    """Whether a module is one of some, or in one of them."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _unusable(path: str, problem: str) -> TransformError:
    return TransformError(
        f"The saved transform {path!r} cannot be used: {problem}; or leave the transforms out with transforms=False."
    )


def load_transforms(stored: Any, known: Known, path: str = "$.transforms") -> Transforms:
    """Return transforms of their stored form.

    Raises
    ------
    TransformError
        One of them cannot be found, or cannot be made with its parameters; the error names it.
    HistoryFormatError
        The form is wrong; the error names the place.
    """
    if not isinstance(stored, Mapping):
        raise HistoryFormatError(path, "it must be a mapping")
    transforms = Transforms()
    several = stored.get("input", [])
    if not isinstance(several, list):
        raise HistoryFormatError(f"{path}.input", "it must be a list")
    transforms.input = [_loaded("input", item, known, f"{path}.input[{n}]") for n, item in enumerate(several)]
    if "output" in stored:
        transforms.output = _loaded("output", stored["output"], known, f"{path}.output")
    if "history" in stored:
        transforms.history = _loaded("history", stored["history"], known, f"{path}.history")
    return transforms


def _loaded(kind: str, stored: Any, known: Known, path: str) -> Any:
    place = stored.get("import") if isinstance(stored, Mapping) else None
    if not isinstance(place, str) or not _PLACE.fullmatch(place):
        raise HistoryFormatError(f"{path}.import", "it must be the name of a module, a colon, and a name in it")
    if place == _COMPOSE and kind == "output":
        stages = stored.get("transforms")
        if not isinstance(stages, list) or not stages:
            raise HistoryFormatError(f"{path}.transforms", "it must be a list of transforms")
        return compose(*[_loaded(kind, item, known, f"{path}.transforms[{n}]") for n, item in enumerate(stages)])
    found = known.find(place)
    parameters = stored.get("parameters", {})
    if not isinstance(parameters, Mapping):
        raise HistoryFormatError(f"{path}.parameters", "it must be a mapping")
    if isinstance(found, type):
        if not all(any(method in vars(base) for base in found.__mro__) for method in _METHODS[kind]):
            raise _unusable(place, f"it is no {kind} transform")
        try:
            found = found(**parameters)
        except Exception as error:
            raise _unusable(place, f"making it failed: {sentence(error).removesuffix('.')}") from error
    elif parameters:
        raise HistoryFormatError(f"{path}.parameters", "a function has none")
    try:
        _CHECKS[kind](found)
    except TypeError as error:
        raise _unusable(place, sentence(error).removesuffix(".")) from None
    return found
