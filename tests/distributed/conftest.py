# SPDX-License-Identifier: Apache-2.0
"""A small corpus on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., Path]:
    """Writes a manifest and its files: one dictionary of tensors each, or bytes."""

    def write(*files: dict[str, Any] | bytes, fields: dict[str, Any] | None = None, repeat: int = 1) -> Path:
        from safetensors.numpy import save_file

        lines = []
        for number, content in enumerate(files):
            path = tmp_path / f"file{number}.safetensors"
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                save_file(content, path)
            lines.append(json.dumps({"file": path.name, **(fields or {})}) + "\n")
        manifest = tmp_path / "manifest.jsonl"
        manifest.write_text("".join(lines * repeat), encoding="utf-8")
        return manifest

    return write
