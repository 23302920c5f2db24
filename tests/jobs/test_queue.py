"""The queue itself, on SQLite and PostgreSQL: each delivery is handed out once, and nothing calls out."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, func, inspect, select
from sqlalchemy import table as sql_table

from qualab.errors import StoreError
from qualab.model.ports import Delivery
from qualab.service.jobs import SCHEMA, DbosConsumer, DbosQueue, QueuePlace
from qualab.store.location import locate
from tests.jobs.conftest import wait_for
from tests.store.conftest import url_of

ME = "here:1:a"
ONE, OTHER = Delivery(comparison_id="one", version=1), Delivery(comparison_id="other", version=3, retry_failed=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> QueuePlace:
    if request.param == "sqlite":
        return QueuePlace(url=locate(str(tmp_path / "qualab.db")).url, path=tmp_path / "qualab.db")
    found = locate(url_of(request.getfixturevalue("restartable"), "jobs"))
    return QueuePlace(url=found.url, path=None)


class Deliveries(list[Delivery]):
    """Remembers what is delivered; holds it until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, delivery: Delivery) -> None:
        self.append(delivery)
        assert self.may_end.wait(20.0)


@contextmanager
def consuming(place: QueuePlace) -> Iterator[tuple[DbosQueue, Deliveries]]:
    queue, delivered = DbosQueue(place), Deliveries()
    consumer = DbosConsumer(place, runner=ME, poll_s=0.05)
    consumer.begin(delivered)
    try:
        yield queue, delivered
    finally:
        delivered.may_end.set()
        consumer.close(within_s=5)
        for delivery in queue.held():
            queue.drop(delivery)
        queue.close()


def test_each_delivery_is_handed_out_once(place: QueuePlace) -> None:
    with consuming(place) as (queue, delivered):
        delivered.may_end.clear()
        for _ in range(2):
            queue.put(ONE)
            queue.put(OTHER, delay_s=2.0)
        queue.put(replace(ONE, version=2), delay_s=60.0)
        first = wait_for(lambda: list(delivered))
        assert first == [replace(ONE, worker=ME)]
        held = {(one.comparison_id, one.version): one for one in queue.held()}
        assert held == {
            ("one", 1): replace(ONE, worker=ME),
            ("other", 3): OTHER,
            ("one", 2): replace(ONE, version=2),
        }
        delivered.may_end.set()
        wait_for(lambda: len(delivered) == 2)
        assert delivered[1] == replace(OTHER, worker=ME)
        queue.put(ONE)
        queue.drop(replace(ONE, version=2))
        wait_for(lambda: not queue.held())
        assert len(delivered) == 2


def test_what_was_begun_goes_before_what_is_new(place: QueuePlace) -> None:
    first, new = Delivery(comparison_id="first", version=1), Delivery(comparison_id="new", version=1)
    put_off, begun = Delivery(comparison_id="put-off", version=3, turn=1), Delivery(comparison_id="begun", version=3)
    with consuming(place) as (queue, delivered):
        delivered.may_end.clear()
        queue.put(first)
        wait_for(lambda: list(delivered))
        for delivery in (new, put_off, begun):
            queue.put(delivery)
        delivered.may_end.set()
        wait_for(lambda: len(delivered) == 4)
        assert [one.comparison_id for one in delivered] == ["first", "begun", "new", "put-off"]


def rows(place: QueuePlace) -> dict[str, int]:
    """How many each table of the queue has."""
    engine = place.engine or create_engine(place.queue_url)
    found = inspect(engine)
    schema = SCHEMA if place.path is None else None
    tables = [sql_table(name, schema=schema) for name in found.get_table_names(schema)]
    with engine.connect() as connection:
        return {one.name: connection.scalar(select(func.count()).select_from(one)) or 0 for one in tables}


def test_nothing_is_kept_of_what_has_ended(place: QueuePlace) -> None:
    with consuming(place) as (queue, delivered):
        queue.forget_ended()
        before = rows(place)
        for number in range(20):
            queue.put(Delivery(comparison_id=f"ended-{number}", version=1, turn=number % 2))
        waits = Delivery(comparison_id="waits", version=1)
        queue.put(waits, delay_s=60.0)
        wait_for(lambda: len(delivered) == 20 and queue.held() == [waits])
        assert rows(place)["workflow_status"] == before["workflow_status"] + 21
        queue.forget_ended()
        assert queue.held() == [waits], "what waits stays"
        queue.drop(waits)
        assert rows(place) == before
        queue.put(replace(delivered[0], worker=""))
        wait_for(lambda: len(delivered) == 21)


def test_a_queue_that_nobody_has_made_yet_is_an_error_of_ours(tmp_path: Path) -> None:
    queue = DbosQueue(QueuePlace(url=locate(str(tmp_path / "qualab.db")).url, path=tmp_path / "qualab.db"))
    with pytest.raises(StoreError, match="the queue's database failed"):
        queue.put(ONE)
    queue.close()


def test_a_password_stands_in_no_message() -> None:
    found = locate("postgresql://me:s3cr3t@127.0.0.1:1/nothing")
    queue = DbosQueue(QueuePlace(url=found.url, path=None))
    with pytest.raises(StoreError) as caught:
        queue.put(ONE)
    assert "s3cr3t" not in str(caught.value)
    queue.close()


def test_nothing_calls_out_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []

    def connect(_: socket.socket, address: object) -> None:
        called.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **_: connect(None, given))  # type: ignore[arg-type]
    before = set(threading.enumerate())
    place = QueuePlace(url=locate(str(tmp_path / "qualab.db")).url, path=tmp_path / "qualab.db")
    with caplog.at_level(logging.WARNING), consuming(place) as (queue, delivered):
        queue.put(ONE)
        wait_for(lambda: list(delivered))
    assert called == []
    assert set(threading.enumerate()) <= before
    assert caplog.records == []
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"qualab-jobs"}


def test_no_environment_makes_it_part_of_a_cloud() -> None:
    script = "import qualab.service.jobs; from dbos._utils import GlobalParams; print(GlobalParams.dbos_cloud)"
    environment = os.environ | {"DBOS__CLOUD": "true", "DBOS__CONDUCTOR_KEY": "key"}
    assert subprocess.check_output([sys.executable, "-c", script], env=environment, text=True) == "False\n"
