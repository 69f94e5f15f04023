"""An IPython kernel in a sandbox: `inside` is what runs there, `life` its start and end, `client` how cells are run."""
