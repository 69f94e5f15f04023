"""Who gets what: inference backends for jobs, nodes for sandboxes."""
