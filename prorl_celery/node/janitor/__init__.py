"""The janitor: finds what is ours on this machine and no longer belongs to a live job, and removes it.

strays        sandboxes of this node's keeper that no live job names
"""
