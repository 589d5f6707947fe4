# SPDX-License-Identifier: Apache-2.0
"""Backends: a module whose tests use the fixture `backend` runs once with each that was built."""

import flash_transducer as ft
import pytest
from flash_transducer import _call


@pytest.fixture(scope="module", params=[name for name in ("reference", "cpu") if name in ft.backends])
def backend(request):
    """The name of the default backend while the tests of a module run."""
    before = _call.DEFAULT_BACKEND
    _call.DEFAULT_BACKEND = request.param
    yield request.param
    _call.DEFAULT_BACKEND = before
