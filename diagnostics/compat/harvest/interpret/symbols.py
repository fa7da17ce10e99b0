"""Names from outside a release that its parser is built with, and what the harvester knows of them."""

from __future__ import annotations

import ssl
from typing import Any

from .values import Constantly, Symbol, Unknown

SUPPRESS = Symbol("argparse.SUPPRESS")

# Values of the standard library that defaults are written with. `sys.argv` and the environment are
# empty: the parser of a plain call.
CONSTANTS: dict[str, Any] = {
    "ssl.CERT_NONE": int(ssl.CERT_NONE),
    "ssl.CERT_OPTIONAL": int(ssl.CERT_OPTIONAL),
    "ssl.CERT_REQUIRED": int(ssl.CERT_REQUIRED),
    "os.environ": {},
    "sys.argv": [],
    "sys.version_info": (3, 12),
    "sys.platform": "linux",
    "typing.TYPE_CHECKING": False,
}

# The platform that tables describe, where a default or a choice depends on it: CUDA.
_PLATFORM: dict[str, Any] = {
    "device_type": "cuda",
    "is_cuda": Constantly(True),
    "is_cuda_alike": Constantly(True),
    **{
        f"is_{name}": Constantly(False) for name in ("cpu", "hpu", "neuron", "openvino", "rocm", "tpu", "xpu")
    },
}


def attribute_of_platform(attr: str) -> Any:
    """`current_platform.attr` where the tables' platform settles it, or Unknown."""
    return _PLATFORM.get(attr, Unknown(f"current_platform.{attr}"))


BUILTINS: dict[str, Any] = {
    **{kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple, bytes, object, type)},
    **{
        f.__name__: f
        for f in (sorted, len, min, max, any, all, range, sum, abs, frozenset, zip, enumerate, repr)
    },
    "True": True,
    "False": False,
    "None": None,
}

_ALIASES: dict[str, Any] = {
    "typing.List": list,
    "typing.Dict": dict,
    "typing.Tuple": tuple,
    "typing.Set": set,
    "typing.Type": type,
}


def builtin(name: str) -> Any:
    """A builtin the evaluator may use, or Unknown."""
    return BUILTINS.get(name, Unknown(name))


def canonical(full: str) -> Any:
    """The symbol of a dotted outside name; `typing_extensions` counts as `typing`, `List` as `list`."""
    full = full.replace("typing_extensions.", "typing.").replace("collections.abc.", "typing.")
    return _ALIASES.get(full, Symbol(full))


def attribute_of_symbol(symbol: Symbol, attr: str) -> Any:
    """`symbol.attr`."""
    full = f"{symbol.name}.{attr}"
    return CONSTANTS.get(full, canonical(full))
