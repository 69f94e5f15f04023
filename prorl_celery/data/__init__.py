"""Data sets: reading files, mapping columns to instances, checking them, preparing what they need."""
