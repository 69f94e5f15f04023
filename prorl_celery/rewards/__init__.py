"""What a reward is besides a task's own score: shaping by length and repetition, and scores of a remote server."""
