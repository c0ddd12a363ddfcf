from __future__ import annotations

import pytest

LONG = ("local_aws", "workloads")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders of long tests come first: at the end no worker is left alone with one of their files."""
    items.sort(key=lambda item: not set(LONG) & set(item.path.parts))
