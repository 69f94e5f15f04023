"""Runs in an eval's sandbox, packed as one file; hence no import of ours but relative ones, and Python 3.9 will do.

`answers` holds what the solution must not know and writes down what came of each case; `cases` starts, limits and ends
the processes of a case; `child` is such a process; `functions` has a function's tests in one process, the function in
another.
"""
