"""Mathematical answers: where a reply says its answer, and whether that is the key's value."""
