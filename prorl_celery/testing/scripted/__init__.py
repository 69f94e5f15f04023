"""The scripted backend: a test double of an inference server. It plays policies; it is not a model.

It speaks vLLM's token API and the chat API with a small real tokenizer, so that everything above it can be
tested on a machine without a GPU, byte for byte. `main(argv)` runs it; `ScriptedBackend` in
`prorl_celery.testing` starts one.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until it is told to stop; the exit status."""
    from prorl_celery.testing.scripted.command import main as run  # aiohttp only where a server runs

    return run(argv)


__all__ = ["main"]
