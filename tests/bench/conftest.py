"""Here the command line runs inside the test's own process."""

from __future__ import annotations

import pytest

from tests.conftest import Run


@pytest.fixture
def noisesieve(inside: Run) -> Run:
    """Run the command line as `main` does, in an empty working folder."""
    return inside
