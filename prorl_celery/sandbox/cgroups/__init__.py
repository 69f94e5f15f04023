"""Control groups: the kernel's own limits of memory, processes and CPU for a whole sandbox, where they may be used.

places    where this process may make groups: cgroup v2 that was delegated to it, or writable v1 controllers
groups    the groups of one keeper: made, joined, read, emptied, removed
left      what a keeper that was killed left behind
"""
