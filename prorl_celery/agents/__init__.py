"""The multi-turn loop: `loop.run_agent`."""
