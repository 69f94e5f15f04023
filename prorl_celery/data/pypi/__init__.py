"""Software-engineering instances from releases of PyPI packages: read, downloaded, laid out for jobs."""
