"""A real model beside the service: vLLM's CPU build in an environment of its own, serving a small model that a package
ships. `machine` says whether it can run here, `install` prepares it, `server` serves it, `guard` sees to its end.
"""
