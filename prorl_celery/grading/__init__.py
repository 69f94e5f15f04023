"""Graders: what an answer, a program or a patch is worth. They run in eval, and know sandboxes but no jobs."""
