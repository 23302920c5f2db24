"""Settings of the service's operator: command line over environment (QUALAB_SERVE_*) over default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic.config import JsonDict
from pydantic_settings import BaseSettings, SettingsConfigDict

from qualab.errors import InvalidValue
from qualab.model.registry import Heartbeat
from qualab.settings import Names, Paths

PREFIX = "QUALAB_SERVE_"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
LOOPBACK_ENDPOINTS = ("localhost", "127.0.0.0/8", "::1/128")


def _repeated(option: str, description: str, default: Any = ()) -> Any:
    """A list, whose option names one entry each time."""
    extra: JsonDict = {"option": option}
    return Field(default, description=f"{description} Repeat it for more.", json_schema_extra=extra)


class ServiceSettings(BaseSettings):
    """Settings of the service: requests reach only what is named here. A field with a description is an option."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on; another than loopback needs a token.")
    port: int = Field(8080, ge=0, le=65_535, description="Port; 0 takes a free one. Default: 8080.")
    allowed_hosts: Names = _repeated("--allow-host", "A name that the Host header may hold.")
    """Beside this machine's own where the service listens on loopback alone."""
    allowed_endpoints: Names | None = _repeated(
        "--allow-endpoint", "What may be called: host (with *), address or network.", default=None
    )
    allowed_paths: Paths = _repeated("--allow-path", "A folder of this machine that requests may name.")
    """Beside the service's own data directory."""
    data_dir: Path | None = None
    secret_env: Names = _repeated(
        "--secret-env",
        "Environment variables that env:NAME may name. Default: QUALAB_KEY_*.",
        default=("QUALAB_KEY_*",),
    )
    secret_dir: Path | None = Field(None, description="Folder of the files that file:/path may name.")
    token_file: Path | None = Field(
        None, description="File with an admin token (`qualab token generate`), beside those of the database."
    )
    allowed_webhooks: Names = _repeated(
        "--allow-webhook", "What may be told of a comparison's end: host (with *), address or network."
    )
    webhook_secret_file: Path | None = Field(
        None, description="File with the secret that signs webhooks: whsec_ and 24 to 64 bytes in base64."
    )
    webhook_pause_s: float = Field(5.0, gt=0)
    """Pause after the first try that fails; each is four times as long as the one before, at most six hours."""
    public_url: str = Field("", description="URL that people reach the service by, for webhooks.")
    may_verify_pins: bool = False
    """Let requests name pods and containers: kubectl and docker look at them with the service's rights."""
    max_body_bytes: int = Field(2 << 20, ge=1)
    rate: float = Field(100.0, ge=0)
    """Requests a second of one token, or of one address without a token; 0 is no limit."""
    burst: int = Field(1_000, ge=1)
    max_streams: int = Field(2_000, ge=1)
    """Clients that follow comparisons, or wait for their ends."""
    max_wait_s: float = Field(60.0, ge=0)
    """How long `?wait` may hold an answer back."""
    poll_s: float = Field(1.0, gt=0)
    """Interval at which a comparison that is followed is read."""
    heartbeat_s: float = Field(15.0, gt=0)
    planning_timeout_s: float = Field(30.0, gt=0)
    """How long a request waits for tasks to be loaded."""
    max_tasks: int = Field(250, ge=1)
    """Tasks of one plan, groups counted by what they hold."""
    threads: int = Field(16, ge=1)
    """Requests that may use the database at once."""
    host_concurrency: int = Field(64, ge=1)
    """Requests of one comparison in flight at one endpoint host."""
    beat_s: float = Field(5.0, gt=0)
    stale_after_s: float = Field(30.0, gt=0)
    """How long a worker may be silent before another takes over its comparison."""
    queue_poll_s: float = Field(1.0, gt=0)
    """How often an idle worker looks for a comparison that is queued."""

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK_HOSTS

    @property
    def base_url(self) -> str:
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(every_s=self.beat_s, stale_after_s=self.stale_after_s)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Default to this machine's where only it can ask, and to none otherwise."""
        if self.allowed_endpoints is not None:
            return self.allowed_endpoints
        return LOOPBACK_ENDPOINTS if self.is_loopback else ()


def load_service(**given: object) -> ServiceSettings:
    """Load the settings; None counts as absent. Raises InvalidValue."""
    try:
        return ServiceSettings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as exc:
        first = exc.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidValue(
            f"{name}: {str(first['msg']).rstrip('.')}",
            hint=f"Change --{name.replace('_', '-')} or {PREFIX}{name.upper()}",
        ) from exc
