"""One of the demo's servers, as a process: `python -m qualab.managed.llama_server --model FILE ...`, until it is ended.

llama.cpp's log goes to standard error and output.
"""

from __future__ import annotations

import argparse
import signal
import sys

import xllamacpp

HTTP_THREADS_PER_SLOT = 4
"""A connection that is kept alive holds a thread for 5 s; a request that finds none free waits as long."""
PROMPT_CACHE_MIB = 1024
"""Tasks take turns; a prompt's beginning that another of the same task left behind is not computed again."""
BATCH_TOKENS = 256
"""A drafter's context holds a whole vocabulary of logits for every token of a batch."""
MAX_DRAFT_TOKENS = 3


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--drafts", action="store_true", help="draft with the model itself")
    parser.add_argument("--parallel", type=int, default=8, help="requests answered at a time")
    parser.add_argument("--context", type=int, default=2048, help="tokens for each of them")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.parallel
    params.n_ctx = options.context * options.parallel
    params.n_threads_http = HTTP_THREADS_PER_SLOT * options.parallel
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.endpoint_metrics = params.endpoint_props = True
    params.ui = params.warmup = False
    params.offline = True
    params.sampling.seed = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    if options.drafts:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = params.speculative.draft
        draft.mparams.path = options.model
        draft.n_max = MAX_DRAFT_TOKENS
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = options.threads
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as exc:  # its log, above, says what is wrong
        sys.exit(str(exc))
    while server:
        signal.pause()


if __name__ == "__main__":
    main()
