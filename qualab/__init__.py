"""qualab: does turning a drafter on change what a served model answers?"""

__version__ = "0.2.0"
