"""A reader of pickled states that runs no code, for `torch.load(pickle_module=...)`.

torch's safe reader refuses a whole file because of a single unknown class. This reader accepts
NumPy arrays and numbers as NumPy 1 and 2 pickled them. An object of an unknown class becomes a
`Placeholder`. The class is neither imported nor called.

Only the functions and classes in `_ALLOWED` are called, and a state is set only on plain objects.
The arguments of NumPy's functions are checked first, because these functions trust the file.
"""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import IO, Any, ClassVar

import numpy as np
import torch

# torch.load reads these names of a pickle module.
UnpicklingError = pickle.UnpicklingError
_DTYPE_STATE_LENGTHS = (8, 9)
_NO_OFFSET = -1


class Placeholder:
    """An object of a class that is not imported. `name` is the name of the class or function."""

    def __init__(self, name: str) -> None:
        self.name = name

    def append(self, item: object) -> None:
        """Discard an item, like all content of the object."""

    def extend(self, items: object) -> None:
        """Discard items."""

    def add(self, item: object) -> None:
        """Discard an element."""

    def __setitem__(self, key: object, value: object) -> None:
        """Discard an entry."""

    def __repr__(self) -> str:
        return f"<{self.name}, which was not imported>"


class _UnknownGlobal(Placeholder):
    """A class or function of the file that is not allowed. A call returns a Placeholder."""

    def __call__(self, *_arguments: object, **_options: object) -> Placeholder:
        """Return a Placeholder, and ignore the arguments."""
        return Placeholder(self.name)


_PythonUnpickler: Any = pickle._Unpickler


class Unpickler(_PythonUnpickler):  # type: ignore[misc]
    """The unpickler of Python's library, in the version written in Python, with safe steps."""

    dispatch: ClassVar[dict[int, Any]] = dict(_PythonUnpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class or function, or a Placeholder with the name. Import nothing."""
        full_name = f"{_FORMER_MODULES.get(module, module)}.{name}"
        allowed = _ALLOWED.get(full_name)
        if allowed is not None:
            return allowed
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return _UnknownGlobal(full_name)

    def load_reduce(self) -> None:
        """Call an allowed function; the call of a Placeholder gives a Placeholder.

        Raises UnpicklingError for any other object, and errors of the function.
        """
        arguments = self.stack.pop()
        self.stack[-1] = _call(self.stack[-1], arguments)

    def load_newobj(self) -> None:
        """Create an object of an allowed class; a Placeholder gives a Placeholder.

        Raises UnpicklingError for any other object, and errors of the class.
        """
        arguments = self.stack.pop()
        self.stack[-1] = _call(self.stack[-1], arguments)

    def load_newobj_ex(self) -> None:
        """Create an object as `load_newobj` does, and ignore the named arguments."""
        self.stack.pop()
        self.load_newobj()

    def _instantiate(self, kind: Any, arguments: Any) -> None:
        """Create an object of an allowed class, for old protocols; a Placeholder gives a
        Placeholder.

        Raises UnpicklingError for any other object, and errors of the class.
        """
        self.append(_call(kind, tuple(arguments)))

    def load_build(self) -> None:
        """Set the state of the last object; discard the state of a Placeholder.

        Raises UnpicklingError if the object accepts no state.
        """
        state = self.stack.pop()
        _set_state(self.stack[-1], state)

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build


def load(file: IO[bytes], **options: Any) -> Any:
    """Read a pickled object from the file, without running code of the file.

    Objects, classes and functions that are not allowed become a Placeholder, which contains only
    the name; `find_placeholder` finds the first. `options` are those of Python's Unpickler, such as
    `encoding`.

    Raises UnpicklingError if the file calls an object that is no class or function, passes invalid
    arguments, or sets the state of an unsuitable object. A damaged file may raise any Exception.
    """
    return Unpickler(file, **options).load()


def find_placeholder(value: object, place: str) -> tuple[str, Placeholder] | None:
    """Find the first placeholder in the values of nested dicts, lists, tuples and sets.

    Return the placeholder's place and the placeholder, or None without a placeholder. `place` is
    the name of `value`; the returned place is for example `place['key'][0]`. Keys of dicts are not
    searched.
    """
    if isinstance(value, Placeholder):
        return place, value
    if isinstance(value, Mapping):
        pairs = [(f"{place}[{key!r:.80}]", item) for key, item in value.items()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        pairs = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
    else:
        return None
    places = (find_placeholder(item, item_place) for item_place, item in pairs)
    return next((placed for placed in places if placed is not None), None)


def without_unreadable(state: dict[str, Any], place: str) -> dict[str, Any]:
    """Return a copy of the state without entries that contain placeholders.

    Print each such entry.
    """
    kept = {}
    for name, value in state.items():
        found = find_placeholder(value, f"{place}[{name!r}]")
        if found is None:
            kept[name] = value
        else:
            print(
                f"[detcloud] {found[0]} of the checkpoint is left out: it is a {found[1].name},"
                " which only code of the checkpoint can read",
                flush=True,
            )
    return kept


def _call(kind: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the result of an allowed function, or a Placeholder for a placeholder.

    Raises UnpicklingError for any other function, and errors of the function.
    """
    if isinstance(kind, Placeholder):
        return Placeholder(kind.name)
    if not any(kind is allowed for allowed in _ALLOWED.values()):
        raise UnpicklingError(f"the file calls {kind!r:.80}, which is no function of a state")
    return kind(*arguments)


def _set_state(target: Any, state: Any) -> None:
    """Set the state of an array, a NumPy type, an OrderedDict or a tensor.

    Discard the state of a placeholder. Raises UnpicklingError for other objects.
    """
    kind = type(target)
    if isinstance(target, Placeholder):
        return
    if kind is np.ndarray:
        _set_array(target, state)
    elif isinstance(target, np.dtype):
        _set_dtype(target, state)
    elif kind is OrderedDict and isinstance(state, dict):
        # The versions of the modules to which a state belongs.
        vars(target).update(state)
    elif kind is torch.nn.Parameter or kind is torch.Tensor:
        target.__setstate__(state)
    else:
        raise UnpicklingError(f"the file sets the state of a {kind.__name__}")


def _set_array(array: Any, state: Any) -> None:
    """Set the content of an array. Raises UnpicklingError if the content does not fit the type.

    Raises ValueError or another exception of NumPy for a malformed state.
    """
    _version, _shape, dtype, _is_fortran, content = state
    if not isinstance(dtype, np.dtype) or dtype.hasobject != isinstance(content, list):
        raise UnpicklingError("an array's content does not fit its type")
    array.__setstate__(state)


def _set_dtype(dtype: Any, state: Any) -> None:
    """Set the state that a file contains for a NumPy type, which changes only the byte order.

    Raise UnpicklingError for a type with fields or a base type, and for a state with another size,
    alignment or flags than the type. NumPy would trust false flags.
    """
    is_known = isinstance(state, tuple) and len(state) in _DTYPE_STATE_LENGTHS
    if (
        not is_known
        or not isinstance(state[1], str)
        or any(part is not None for part in state[2:5])
    ):
        raise UnpicklingError(f"an array has the type {dtype}, which is not read")
    size, alignment, flags = state[5:8]
    is_flexible = dtype.kind in "SUV"
    is_same_size = size in (_NO_OFFSET, dtype.itemsize) if is_flexible else size == _NO_OFFSET
    if not is_same_size or alignment not in (_NO_OFFSET, dtype.alignment):
        raise UnpicklingError(f"an array's type {dtype} has another size than it says")
    if flags != dtype.flags:
        raise UnpicklingError(f"an array's type {dtype} has flags that it cannot have")
    dtype.__setstate__(state)


def _empty_array(_kind: object, _shape: object, _dtype: object) -> Any:
    """Return an empty NumPy array, in place of NumPy's `_reconstruct`. Ignore the arguments.

    The file's next step sets the type, shape and content.
    """
    return np.ndarray.__new__(np.ndarray, (0,), "b")


def _build_dtype(text: object, *_options: object) -> Any:
    """Return a NumPy type of numbers or text for a short name such as `u4`.

    Raises UnpicklingError for other texts.
    """
    if not isinstance(text, str) or "," in text or "(" in text:
        raise UnpicklingError(f"an array has the type {text!r:.80}, which is not read")
    return np.dtype(text, align=False, copy=True)


def _build_number(dtype: Any, content: object = None) -> Any:
    """Return a NumPy number. Raises UnpicklingError if the content does not fit the type."""
    if not isinstance(dtype, np.dtype) or dtype.hasobject or not isinstance(content, bytes):
        raise UnpicklingError("a NumPy number has no content that fits its type")
    return np.frombuffer(content, dtype, count=1)[0]


def _array_of_buffer(content: object, dtype: Any, shape: Any, order: Any, *_axes: object) -> Any:
    """Return an array that protocol 5 stored, in place of NumPy's `_frombuffer`.

    Raises UnpicklingError if the type has objects or the content is not bytes.
    """
    if not isinstance(dtype, np.dtype) or dtype.hasobject:
        raise UnpicklingError("an array's content does not fit its type")
    if not isinstance(content, bytes | bytearray):
        raise UnpicklingError("an array has no content")
    return np.frombuffer(content, dtype).reshape(shape, order=order)


def _encode_text(text: object, encoding: object = "latin1") -> bytes:
    """Return the bytes that protocol 2 stored as text in Latin-1.

    Raises UnpicklingError for anything else.
    """
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise UnpicklingError(f"the file encodes text as {encoding!r:.80}")
    return text.encode("latin-1")


# Former names of modules: names of Python 2, which protocol 2 writes, and names of NumPy 1.
_FORMER_MODULES = {
    "__builtin__": "builtins",
    "numpy.core.multiarray": "numpy._core.multiarray",
    "numpy.core.numeric": "numpy._core.numeric",
}


def _torch_functions() -> dict[str, Callable[..., Any]]:
    """Return the functions of this torch that rebuild tensors, by full name."""
    names = (
        "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter"
        " _rebuild_sparse_tensor _rebuild_qtensor"
    )
    utils: Any = torch._utils
    found = {f"torch._utils.{name}": getattr(utils, name, None) for name in names.split()}
    return {name: function for name, function in found.items() if function is not None}


_ALLOWED: dict[str, Any] = {
    **_torch_functions(),
    "torch.nn.parameter.Parameter": torch.nn.Parameter,
    "torch.Size": torch.Size,
    "torch.device": torch.device,
    "collections.OrderedDict": OrderedDict,
    "collections.Counter": Counter,
    "collections.defaultdict": defaultdict,
    "collections.deque": deque,
    **{f"builtins.{kind.__name__}": kind for kind in (set, frozenset, list, dict, tuple)},
    **{f"builtins.{kind.__name__}": kind for kind in (int, float, bool, complex, bytearray)},
    "_codecs.encode": _encode_text,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": _build_dtype,
    "numpy._core.multiarray._reconstruct": _empty_array,
    "numpy._core.multiarray.scalar": _build_number,
    "numpy._core.numeric._frombuffer": _array_of_buffer,
}
