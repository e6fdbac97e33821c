"""Numba, set up once for all kernels: compiled ahead by signature, outside Python's lock, kept on disk.

A signature makes the kernel ready at import, so a worker's first rows do not wait for the compiler, and a
process that forks workers (Spark's daemon) compiles or loads for all of them. What was compiled lies beside the
source or, where that may not be written, in the user's cache or NUMBA_CACHE_DIR; where nothing may be written
each process compiles anew, which takes seconds.
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
        except RuntimeError:  # numba's word for having no place to keep it
            return cast(F, numba.njit(signature, nogil=True)(function))

    return decorate


def helper(function: F) -> F:
    """A part of kernels, compiled into each of them."""
    return cast(F, numba.njit(nogil=True, inline="always")(function))


def _copy(typing: Any, target: Any, at: Any, source: Any, start: Any, size: Any) -> Any:  # noqa: PLR0917
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target_type, _, source_type, _, _ = signature.args
        to = context.make_array(target_type)(context, builder, arguments[0]).data
        origin = context.make_array(source_type)(context, builder, arguments[2]).data
        memcpy: Any = cgutils.raw_memcpy
        memcpy(builder, builder.gep(to, [arguments[1]]), builder.gep(origin, [arguments[3]]), arguments[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


def _byte_at(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), generate


# `target[at:at + size] = source[start:start + size]` of bytes, as one memcpy without checks: Numba's own copies a
# byte at a time, ten times slower for fields of a hundred bytes.
copy = cast(Callable[[Any, int, Any, int, int], None], intrinsic(_copy))

# The byte at an address. A helper that is given the array instead counts a reference to it at every call, which
# takes five times as long as all that it does.
byte_at = cast(Callable[[int], int], intrinsic(_byte_at))
