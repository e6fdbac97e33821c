"""The shape of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Parameters = dict[str, Any]
Ready = Callable[[], None]
Job = Callable[[Parameters, Ready], dict[str, Any]]
