"""What paired answers can and cannot prove: pure functions on counts and arrays.

All of them raise InvalidValue for arguments that cannot be, and InsufficientData where the data hold no evidence.
"""
