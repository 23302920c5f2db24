"""REST: thin. Requests in, use cases called, answers out."""
