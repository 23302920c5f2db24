"""Pure functions on counts and arrays: what paired answers can and cannot prove.

They raise InvalidValue for impossible arguments of a user, and InsufficientData where the data hold no evidence.
"""
