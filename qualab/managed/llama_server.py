"""One of the demo's servers: `python -m qualab.managed.llama_server MODEL ALIAS PORT THREADS [--drafts]`."""

from __future__ import annotations

import signal
import sys

import xllamacpp

PARALLEL = 8
"""Requests answered at a time."""
CONTEXT_TOKENS = 2048
"""For each request."""
HTTP_THREADS_PER_SLOT = 4
"""A connection that is kept alive holds a thread for 5 s; a request that finds none free waits as long."""
PROMPT_CACHE_MIB = 1024
"""Tasks take turns; a prompt's beginning that another of the same task left behind is not computed again."""
BATCH_TOKENS = 256
"""A drafter's context holds a whole vocabulary of logits for every token of a batch."""
MAX_DRAFT_TOKENS = 3


def main() -> None:
    """Serve until ended; llama.cpp's log goes to standard error and output."""
    model, alias, port, threads, *flags = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {alias}
    tags = {f"version=xllamacpp {xllamacpp.__version__}"}  # the wheel's llama.cpp does not know its own
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_parallel = PARALLEL
    params.n_ctx = CONTEXT_TOKENS * PARALLEL
    params.n_threads_http = HTTP_THREADS_PER_SLOT * PARALLEL
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.endpoint_metrics = params.endpoint_props = True
    params.ui = params.warmup = False
    params.offline = True
    params.sampling.seed = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    if flags == ["--drafts"]:  # with the model itself
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        tags.add(f"drafter=draft model {alias}, {MAX_DRAFT_TOKENS} tokens")
        draft = params.speculative.draft
        draft.mparams.path = model
        draft.n_max = MAX_DRAFT_TOKENS
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = int(threads)
    params.model_tags = tags
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as exc:  # its log, above, says what is wrong
        sys.exit(str(exc))
    while server:
        signal.pause()


if __name__ == "__main__":
    main()
