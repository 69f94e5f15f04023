"""Fakes that ship: for the tests of this project and of those who build on it. None of them is shown as the
real thing.

`ScriptedBackend` stands for an inference server, with the tokenizer in `scripted_tokenizer_dir()`. `local` runs one job
in this process, without a service; `kit` checks a handler by it against the contract.
"""

from prorl_celery.testing.backend import ScriptedBackend, scripted_tokenizer_dir

__all__ = ["ScriptedBackend", "scripted_tokenizer_dir"]
