"""`qualab.ports.PinSource` on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qualab.adapters.pins.folders import FolderHashes, local_revision
from qualab.adapters.pins.images import docker_digests, pod_digests


class LocalPins:
    """Asks the commands and folders of this machine. What has been hashed is not hashed again while it is unchanged."""

    def __init__(self) -> None:
        self._hashes = FolderHashes()

    async def pod_image(self, pod: str) -> tuple[str, ...]:
        return await pod_digests(pod)

    async def container_image(self, container: str) -> tuple[str, ...]:
        return await docker_digests(container)

    async def checkpoint_hash(self, folder: Path, *, say: Callable[[str], None]) -> str:
        return await self._hashes.hash_of(folder, say=say)

    def revision(self, folder: Path) -> str:
        return local_revision(folder)
