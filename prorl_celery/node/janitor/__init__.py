"""The janitor: finds what is ours on this machine and no longer belongs to a live job, and removes it.

strays        sandboxes of this node's keeper that no live job names
leftovers     what no keeper has: of dead ones, of services that were killed
things        what there is: files, mounts, control groups
processes     and processes, by their labels
thing         one of them
removal       removes what is left over
counter       how many sandboxes leaked
"""
