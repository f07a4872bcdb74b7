"""The HTTP routes, one file for each kind of thing. They turn requests into calls of the service and nothing more."""
