"""The service's use cases: what REST, the command line and the workers call."""
