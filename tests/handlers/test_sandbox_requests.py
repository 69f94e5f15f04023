"""What a handler may ask of a sandbox: another type than a field's is told at once, by the field's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from prorl_celery.handlers.base import SandboxRequest


@pytest.mark.parametrize(
    ("field", "value"),
    [("image", Path("/images/a.sif")), ("network", True), ("binds", "/data:/data"), ("binds", (Path("/data"),)),
     ("fakeroot", "yes"), ("kernel", None), ("memory_bytes", "2G"), ("disk_bytes", 1.5)],
)  # fmt: skip
def test_a_request_of_another_type_is_refused_where_it_is_made(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        SandboxRequest(**{field: value})  # type: ignore[arg-type]


def test_a_list_of_binds_will_do() -> None:
    assert SandboxRequest(binds=["/a:/b"]).binds == ["/a:/b"]  # type: ignore[arg-type]
