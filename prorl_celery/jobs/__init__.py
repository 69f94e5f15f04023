"""The job: its models, its record in the store, its turn log, its result."""
