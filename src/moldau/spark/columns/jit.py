"""Numba settings for all kernels: compiled when imported, without the GIL, cached on disk.

With a signature, a kernel is ready after its import. The first rows of a worker do not wait for the compiler, and a
process that forks workers (Spark's daemon) compiles or loads the kernels for all of them. Numba caches compiled code
beside the source or, if that is read-only, in the user's cache or NUMBA_CACHE_DIR. If nothing is writable, each process
compiles again, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def kernel(signature: str) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        try:
            return cast(F, numba.njit(signature, nogil=True, cache=True)(function))
        except RuntimeError:  # Numba found no writable place for its cache
            return cast(F, numba.njit(signature, nogil=True)(function))

    return decorate


def helper(function: F) -> F:
    """A function for use in kernels. LLVM inlines it; Numba's own inlining would double the compile time."""
    return cast(F, numba.njit(nogil=True)(function))


def _address_of(typing: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


def _byte_at(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.load(_pointer(builder, arguments[0])), ir.IntType(64))

    return types.int64(types.int64), generate


def _put_byte(typing: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(builder.trunc(arguments[1], ir.IntType(8)), _pointer(builder, arguments[0]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _copy(typing: Any, target: Any, source: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin = _pointer(builder, arguments[0]), _pointer(builder, arguments[1])
        memcpy: Any = cgutils.raw_memcpy
        memcpy(builder, to, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.IntType(8).as_pointer())


# These access memory by address, without checks. A helper that takes an array counts a reference to it at every call,
# which takes five times as long as its work. Numba copies one byte at a time; `copy` is a memcpy, which is ten times
# faster for fields of a hundred bytes.
address_of = cast(Callable[[Any], int], intrinsic(_address_of))
byte_at = cast(Callable[[int], int], intrinsic(_byte_at))
put_byte = cast(Callable[[int, int], None], intrinsic(_put_byte))
copy = cast(Callable[[int, int, int], None], intrinsic(_copy))
