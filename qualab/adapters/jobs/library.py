"""DBOS, kept on this machine: the only module that imports it, which takes half a second."""

from __future__ import annotations

import logging
import os

os.environ.pop("DBOS__CLOUD", None)  # read when it is imported: the one switch that would make it call out

from dbos import DBOS, DBOSClient, DBOSConfig, EnqueueOptions, WorkflowSerializationFormat, error

logging.getLogger("dbos").addHandler(logging.NullHandler())  # instead of the console handler that it would add

__all__ = ["DBOS", "DBOSClient", "DBOSConfig", "EnqueueOptions", "WorkflowSerializationFormat", "error"]
