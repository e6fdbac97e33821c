"""Wrong calls of the Python API say what is right, with an example."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from moldau.pipelines.model.options import meant_word

_P = ParamSpec("_P")
_R = TypeVar("_R")
_UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def explained(example: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """A function whose TypeError for wrong arguments ends in the nearest known word and this example."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                unknown = _UNEXPECTED.search(str(error))
                meant = meant_word(unknown[1], list(signature.parameters)) if unknown else None
                hint = f": did you mean '{meant}'?" if meant else "."
                raise TypeError(f"{function.__name__}: {error}{hint} For example: {example}") from None
            return function(*args, **kwargs)

        return call

    return decorate
