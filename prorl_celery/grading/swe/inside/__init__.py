"""Programs that grade inside a sandbox: the standard library alone, Python 3.9 or newer, no import of ours by path."""
