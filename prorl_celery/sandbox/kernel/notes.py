"""What a holder of a sandbox notes of its kernel on their page; see `prorl_celery.sandbox.notes`."""

from __future__ import annotations

from prorl_celery.sandbox.notes import IDLE, KERNEL, NAME_BYTES, NO_EXIT_CODE, PREPARING, SENT, Counted
from prorl_celery.sandbox.page import Page


class KernelNotes(Counted):
    """Of the kernel: its last cell."""

    def __init__(self, page: Page) -> None:
        super().__init__(page, KERNEL)

    @property
    def state(self) -> int:
        return self._get(1)

    @property
    def flags(self) -> int:
        return self._get(2)

    @property
    def kernel_ended(self) -> int | None:
        """How the kernel ended with the cell, or had to be ended; None if it lived on."""
        code = self._get(3)
        return None if code == NO_EXIT_CODE else code

    @property
    def started_at(self) -> float:
        return self._page.numbers[self._base + 4]

    @property
    def seen_at(self) -> float:
        return self._page.numbers[self._base + 5]

    @seen_at.setter
    def seen_at(self, at: float) -> None:
        self._page.numbers[self._base + 5] = at

    @property
    def heard(self) -> bool:
        """The kernel has said that it runs it."""
        return bool(self._get(6))

    @heard.setter
    def heard(self, heard: bool) -> None:
        self._set(6, int(heard))

    @property
    def request(self) -> str:
        """The message that the cell was sent by."""
        return self._text(7).decode("ascii", "replace")

    @property
    def kernel(self) -> str:
        """The name of the kernel that it was sent to."""
        return self._text(24).decode("ascii", "replace")

    def cell(self, request: str, kernel: str, at: float) -> None:
        """A cell is about to be sent."""
        self._set(1, PREPARING)
        self.heard = False
        self._set_text(7, request.encode(), NAME_BYTES)
        self._set_text(24, kernel.encode(), NAME_BYTES)
        self._page.numbers[self._base + 4] = self.seen_at = at
        self.count += 1
        self._set(1, SENT)

    def result(self, flags: int, kernel_ended: int | None, at: float) -> None:
        """How it went."""
        self._set(2, flags)
        self._set(3, NO_EXIT_CODE if kernel_ended is None else kernel_ended)
        self.seen_at = at
        self._set(1, IDLE)
