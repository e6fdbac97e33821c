"""The parameters of a Python function, read from its module's text: nothing of the user's is imported or run."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from moldau.config.keys import nearest
from moldau.errors import ConfigError


def view_parameters(target: str, folder: Path) -> tuple[str, ...]:
    """The names of the views that `module:function` takes; parameters with a default are not views."""
    module, colon, name = target.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), name]):
        raise ConfigError(f"'{target}': expected module:function, such as my_steps:mark")
    path = _find_module(module, folder)
    if path is None:
        raise ConfigError(f"there is no module '{module}' in {folder.resolve()} or on Python's path")
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except SyntaxError as error:
        raise ConfigError(f"{path}:{error.lineno}:{error.offset}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not Python: {error}") from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if name not in functions:
        meant = nearest(name, functions)
        hint = f": did you mean '{meant}'?" if meant else ""
        raise ConfigError(f"{path.name} has no function '{name}'{hint}")
    return _parameters(functions[name])


def _parameters(function: ast.FunctionDef) -> tuple[str, ...]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if arguments.vararg or any(default is None for default in arguments.kw_defaults):
        raise ConfigError(f"function {function.name}: name each view as a parameter of its own, before any `*`")
    return tuple(argument.arg for argument in positional[: len(positional) - len(arguments.defaults)])


def _find_module(module: str, folder: Path) -> Path | None:
    base = folder.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    top, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    if not rest:
        return Path(spec.origin)
    return _find_module(rest, Path(spec.origin).parent) if spec.submodule_search_locations else None
