"""The asynchronous client of OpenAI-compatible endpoints."""
