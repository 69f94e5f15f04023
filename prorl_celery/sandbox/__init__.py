"""Where an agent's commands run: kinds of sandboxes, and how a worker asks the keeper for one and uses it."""
