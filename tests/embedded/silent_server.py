"""A server that starts, says so in its log, and never gets ready."""

import sys

print("still loading", file=sys.stderr, flush=True)
sys.stdin.read()
