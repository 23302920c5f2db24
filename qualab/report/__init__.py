"""Builds the report's model from what is stored."""
