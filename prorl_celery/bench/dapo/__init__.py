"""Batches measured: a simulation of the real scripts with a virtual clock, beside other ways to fill a batch."""
