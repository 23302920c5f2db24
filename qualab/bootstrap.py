"""The composition root: settings in, services out. Heavy adapters are imported when they are first needed."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import qualab
from qualab.clock import SystemClock
from qualab.errors import InvalidValue
from qualab.model.names import ArmName
from qualab.model.pair import ServedPair
from qualab.model.plan import DecisionRule, DrafterCosts, NoisePlan, PinPlaces, RequestPolicy
from qualab.model.ports import Clock, Harness, PinSource, Registry, RemoteService, Renderer, Store
from qualab.model.report import GateResult
from qualab.run.experiment import Experiment
from qualab.run.services import Services

if TYPE_CHECKING:
    from qualab.imports.import_ import ImportServices
    from qualab.settings import Settings


T = TypeVar("T")


def share(name: str) -> Path:
    """A folder that ships beside the package: `tasks` or `migrations`."""
    package = Path(qualab.__file__).parent
    installed = package / "_share" / name
    return installed if installed.is_dir() else package.parent / name


def database_url(db: str) -> str:
    """The database of this name; without one, the embedded one in the user's data directory."""
    return db or str(default_database())


def is_server(db: str) -> bool:
    """Whether this database is a server's, which may be away for a while."""
    from qualab.store.location import locate

    return locate(database_url(db)).path is None


def default_database() -> Path:
    """The embedded database in the user's data directory."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "qualab" / "qualab.db"


def store_of(settings: Settings) -> Store:
    """Opens the database; a new embedded one is made."""
    return _store_at(settings.db)


def store_named(db: str | None) -> Store:
    """The same for a command that needs no other setting: the command line's database, else QUALAB_DB's.

    Reading all settings would be a seventh of the time that such a command takes.
    """
    return _store_at(_named(db))


def _named(db: str | None) -> str:
    environment = {name.upper(): value for name, value in os.environ.items()}  # settings' names have any case, too
    return environment.get("QUALAB_DB", "") if db is None else db


def database_shown(db: str | None) -> str:
    """Where that store is, for a person: without a password."""
    from qualab.store.location import locate

    return str(locate(database_url(_named(db))))


def _store_at(db: str) -> Store:
    from qualab.store import open_store

    return open_store(database_url(db), migrations=share("migrations"))


def registry_of(settings: Settings) -> Registry:
    """What the service keeps beside comparisons, in the same database."""
    return stores_of(settings)[1]


def stores_of(settings: Settings) -> tuple[Store, Registry]:
    """Both, on the same connections."""
    from qualab.store import open_store

    store = open_store(database_url(settings.db), migrations=share("migrations"))
    return store, store.registry


def now() -> datetime:
    """The time, aware UTC."""
    return SystemClock().now()


def harness_of(settings: Settings) -> Harness:
    """lm-evaluation-harness in processes of its own, with the tasks that ship beside the package."""
    from qualab.harness import SeparateHarness

    return SeparateHarness(tasks_dir=share("tasks"), item_timeout_s=settings.scoring_timeout)


def services_of(settings: Settings, *, keeps_nothing: bool = False, store: Store | None = None) -> Services:
    """Everything that a run needs: without a database (`keeps_nothing`), or on a `store` that is open already."""
    from qualab.endpoints.client import open_endpoint
    from qualab.endpoints.tokenizing import named_tokenizer
    from qualab.endpoints.urls import same_server
    from qualab.harness.exporting import write_lm_eval_files
    from qualab.store.memory import MemoryStore

    return Services(
        store=MemoryStore() if keeps_nothing else store or store_of(settings),
        harness=harness_of(settings),
        open_endpoint=open_endpoint,
        named_tokenizer=named_tokenizer,
        is_same_server=same_server,
        write_results=write_lm_eval_files,
        pins=pin_source(),
        clock=SystemClock(),
        runner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
    )


def renderer(name: str) -> Renderer:
    """What draws a report as pdf, html, md or json."""
    if name == "pdf":
        from qualab.report.pdf import render_pdf

        return render_pdf
    if name == "html":
        from qualab.report.html import render_html

        return render_html
    from qualab.report.markdown import render_json, render_markdown

    return {"md": render_markdown, "json": render_json}[name]


def page_renderer() -> Callable[[str, Mapping[str, object]], bytes]:
    """What draws a web page of this name with these values."""
    from qualab.report.web import render_page

    return render_page


def static_file(name: str) -> tuple[bytes, str] | None:
    """A file that web pages load, and its media type; None where there is none."""
    from qualab.report.web import static_file

    return static_file(name)


def clock() -> Clock:
    """The system's."""
    return SystemClock()


def remote_service(url: str, *, token: str) -> AbstractAsyncContextManager[RemoteService]:
    """A server of `qualab serve`."""
    from qualab.endpoints.remote import open_service

    return open_service(url, token=token)


def gate_renderer(kind: str) -> Callable[[GateResult], bytes]:
    """How a gate's result is written. `kind` is "junit" or "markdown"."""
    from qualab.report.gate import gate_markdown, junit

    return {"junit": junit, "markdown": lambda found: gate_markdown(found).encode()}[kind]


def gate_error_renderer(kind: str) -> Callable[..., bytes]:
    """How it is written that a gate has no result: of a name, `code=` and `message=`. `kind` as before."""
    from qualab.report.gate import gate_markdown_of_error, junit_of_error

    return {"junit": junit_of_error, "markdown": lambda name, **said: gate_markdown_of_error(name, **said).encode()}[
        kind
    ]


def import_services_of(settings: Settings) -> ImportServices:
    """Everything that an import needs; lm-eval is not loaded."""
    from qualab.harness.catalog import read_catalog
    from qualab.imports.import_ import ImportServices
    from qualab.imports.opening import LogFiles

    knows = read_catalog(share("tasks")).facts
    return ImportServices(store=store_of(settings), logs=LogFiles(), knows=knows, clock=SystemClock())


def rule_of(settings: Settings) -> DecisionRule:
    """How these settings judge."""
    return DecisionRule(
        margin=settings.margin,
        margins=settings.margins,
        score_bounds=settings.score_bounds,
        objective=settings.objective,
        strict=settings.strict,
        alpha=settings.alpha,
        power=settings.power,
        max_missing_share=settings.max_missing_share,
        missing_lost=settings.missing_lost,
        min_accepted_share=settings.min_accepted_share,
        allow_unobserved=settings.allow_unobserved,
    )


def pin_source() -> PinSource:
    """What tells what the arms really run: kubectl, docker, and this machine's folders."""
    from qualab.run.pin_sources import LocalPins

    return LocalPins()


NEEDED_TO_RUN = ("baseline", "candidate", "model")


def experiment_of(settings: Settings, *, needed: tuple[str, ...] = NEEDED_TO_RUN) -> Experiment:
    """The comparison that these settings describe. Raises InvalidValue for what is needed and missing."""
    for name in needed:
        if not getattr(settings, name):
            raise InvalidValue(
                f"No {name} is given",
                hint=f"Give --{name}, set QUALAB_{name.upper()}, or write it into an experiment file (`qualab init`)",
            )
    return Experiment(
        baseline=settings.baseline,
        candidate=settings.candidate,
        model=settings.model,
        tasks=settings.tasks,
        num_fewshot=settings.num_fewshot,
        limit=settings.limit,
        include_path=settings.include_path,
        data_dir=settings.data_dir,
        gen_kwargs=settings.gen_kwargs,
        allow_extra=settings.allow_extra,
        seed=settings.seed,
        repeats=settings.repeats,
        looks=settings.looks,
        sequential=settings.sequential,
        noise_floor=_noise_floor(settings),
        drafter_costs=DrafterCosts(**dict(settings.drafter_costs)) if settings.drafter_costs else None,
        apply_chat_template=settings.apply_chat_template,
        system_instruction=settings.system_instruction,
        tokenizer=settings.tokenizer,
        label=settings.label,
        image=settings.pin_names.image,
        revision=settings.pin_names.revision,
        places=_places(settings),
        policy=RequestPolicy(
            concurrency=settings.concurrency,
            timeout_s=settings.timeout,
            max_attempts=settings.max_attempts,
            max_wait_s=settings.max_wait,
            max_failed_share=settings.max_failed_share,
        ),
        rule=rule_of(settings),
        expected_missing=settings.expected_missing,
    )


def places_here(settings: Settings) -> dict[str, str]:
    """What is said of where the arms run now, for a comparison that is resumed."""
    from qualab.run.pins import places_text

    said = places_text(_places(settings))
    left_out = {"checkpoint"} if settings.checkpoint == "" else set()
    return {name: text for name, text in said.items() if text or name in left_out}


def _places(settings: Settings) -> PinPlaces:
    folder = settings.pin_names.checkpoint
    return PinPlaces(checkpoint=Path(folder) if folder else None, pods=settings.pods, containers=settings.containers)


def _noise_floor(settings: Settings) -> NoisePlan | None:
    """Any of its settings asks for it; the concurrency is that of the arms where none is given."""
    from qualab.settings import NoiseSettings

    given, runs, concurrency = settings.noise_floor, settings.noise_floor_runs, settings.noise_floor_concurrency
    if given is None and runs is None and concurrency is None:
        return None
    base = given or NoiseSettings()
    first = (one for one in (concurrency, base.concurrency, settings.concurrency) if one is not None)
    return NoisePlan(runs=base.runs if runs is None else runs, concurrency=next(first))


def keys_of(settings: Settings, *, managed: bool = False) -> dict[ArmName, str | None]:
    """API keys by arm; they live in memory only. A managed pair's is the one that vLLM takes from the environment."""
    from qualab.settings import api_keys

    if managed and (key := os.environ.get("VLLM_API_KEY")):
        return dict.fromkeys(ArmName, key)
    return {ArmName(arm): key for arm, key in api_keys(settings).items()}


def upgrade_database(settings: Settings) -> None:
    """Brings the database to this version's schema."""
    from qualab.store import upgrade

    upgrade(database_url(settings.db), migrations=share("migrations"))


def current_revision(settings: Settings) -> tuple[str | None, str]:
    """The database's schema revision and this version's."""
    from qualab.store import current

    return current(database_url(settings.db), migrations=share("migrations"))


def run_async(job: Coroutine[Any, Any, T]) -> T:
    """Runs a use case to its end, on uvloop where there is one: a third less time a request than asyncio's own loop."""
    allow_open_files()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(job)


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


def allow_open_files() -> None:
    """Raises the limit of open files to what the system grants: every request in flight is one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems grant less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def embedded_pair(*, say: Callable[[str], None], log_dir: Path) -> AbstractContextManager[Any]:
    """The demo's own pair of servers; yields (baseline URL, candidate URL)."""
    from qualab.managed.embedded import embedded_pair as pair
    from qualab.managed.embedded import prepare_models

    return pair(prepare_models(say=say), drafter="draft", log_dir=log_dir, say=say)


def read_pair(path: Path) -> ServedPair:
    """The pair that a file describes. Raises UsageError, UnknownSetting or InvalidValue with the file's line."""
    from qualab.managed.reading import read_pair as read

    return read(path)


def served_pair(
    pair: ServedPair, *, arms: Sequence[ArmName], say: Callable[[str], None]
) -> AbstractContextManager[Sequence[Any]]:
    """Serves these arms; yields the servers, each with `check()`."""
    from qualab.managed.serving import serve

    return serve(pair, arms=arms, say=say)


def render_pair(pair: ServedPair, kind: str) -> dict[str, str]:
    """The pair as manifests: text by file name. `kind` is "kubernetes" or "compose"."""
    from qualab.managed.manifests import render_compose, render_kubernetes

    return {"kubernetes": render_kubernetes, "compose": render_compose}[kind](pair)
