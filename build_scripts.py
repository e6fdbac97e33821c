"""The installed commands, from the one table of them (`moldau.cli.registry`): read when the package is built."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ScriptsHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        # By its path: what the package needs to be imported is not there while it is built.
        registry = Path(self.root, "src", "moldau", "cli", "registry.py")
        spec = importlib.util.spec_from_file_location("moldau_cli_registry", registry)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        metadata["scripts"] = module.scripts()
