"""Asks a command of this machine for JSON."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from typing import Any

import orjson

from qualab.errors import PinUnreadable

TIMEOUT_S = 20.0
SHOWN = 200
"""Characters of a command's own words."""


async def ask_json(command: Sequence[str], *, about: str, timeout_s: float = TIMEOUT_S) -> Any:
    """What the command prints. Raises PinUnreadable where it is missing, fails, hangs, or prints something else."""
    name = command[0]
    try:
        process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    except OSError as exc:
        raise PinUnreadable(
            f"{about} cannot be looked into: {name} cannot be started ({exc.strerror})",
            hint=f"Install {name}, or leave the name out: the image is then recorded as declared",
        ) from exc
    out, err = await _output(process, about=about, name=name, timeout_s=timeout_s)
    if process.returncode:
        raise PinUnreadable(
            f"{about} cannot be looked into: {name} says: {_said(err) or f'exit code {process.returncode}'}",
            hint=f"Try it by hand: {' '.join(command)}",
        )
    try:
        return orjson.loads(out)
    except orjson.JSONDecodeError as exc:
        raise PinUnreadable(
            f"{about} cannot be looked into: {name} printed no JSON", hint=f"Try it by hand: {' '.join(command)}"
        ) from exc


async def _output(process: Process, *, about: str, name: str, timeout_s: float) -> tuple[bytes, bytes]:
    """What it wrote until it ended; it never outlives this."""
    try:
        async with asyncio.timeout(timeout_s):
            return await process.communicate()
    except TimeoutError as exc:
        raise PinUnreadable(
            f"{about} cannot be looked into: {name} has not answered for {timeout_s:g} s",
            hint="Check that its server can be reached from here",
        ) from exc
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _said(err: bytes) -> str:
    """The last line of the error output, where commands say what was wrong."""
    lines = [line.strip() for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:SHOWN] if lines else ""
