"""An IPython kernel in a sandbox: started with it where the job's tools have `ipython`, and up before init is done.

inside     what runs in the sandbox: ipykernel on sockets that are there already
shown      what it shows, made short, and kept of the last cell
start      how a sandbox is told to be ready for that
life       a kernel's start and end, seen without a message of Jupyter's
zmtp       the bytes that carry them
channels   Jupyter's messages
results    what a cell showed, as text
takeover   what a holder that died left half-done
client     cells run, interrupted, and what follows when a kernel ends

For operators. A sandbox without an image, or whose image borrows the machine's /usr, runs kernels on the packages that
PRORL_KERNEL_PACKAGES names and all that they require. The keeper publishes them once, when the first kernel is asked
for, beside what else its sandboxes see: as hard links, else as copies (some 300 MB with numpy, scipy and sympy). Where
the machine has no Python of this installation's version, this Python is published too. Any other image runs kernels by
the `python3` on its PATH, which must have ipykernel; 6.0, 6.29 and 7.4 were tried. A kernel takes some 30 MB.
"""
