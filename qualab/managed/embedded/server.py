"""One of the pair's servers, as a process: `python -m qualab.managed.embedded.server --model FILE ...`.

Its address is the one line on standard output; llama.cpp's log goes to standard error. It ends when its standard input
does, so that it never outlives the process that started it, however that one ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

import xllamacpp

HOST = "127.0.0.1"
SPECULATION = xllamacpp.common_speculative_type
HTTP_THREADS_PER_SLOT = 4
"""A connection that is kept alive holds a thread for 5 s; a request that finds none free waits as long."""
PROMPT_CACHE_MIB = 1024
"""Tasks take turns; a prompt's beginning that another of the same task left behind is not computed again."""
BATCH_TOKENS = 256
"""A drafter's context holds a whole vocabulary of logits for every token of a batch."""
MAX_DRAFT_TOKENS = 3
NGRAM_SIZE, NGRAM_DRAFT_TOKENS = 3, 4
"""At its default sizes the n-gram drafter drafts nothing on short prompts."""


def main() -> None:
    """Serves until standard input ends."""
    options = _options()
    announce = _take_standard_output()
    owner = threading.Thread(target=_end_with_the_owner, daemon=True)
    owner.start()
    try:
        server = xllamacpp.Server(_parameters(options))
    except RuntimeError as exc:  # its log, above, says what is wrong
        sys.exit(str(exc))
    os.write(announce, f"{server.listening_address}\n".encode())
    owner.join()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--drafter", choices=("draft", "ngram", "off"), default="off")
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--parallel", type=int, default=8, help="requests answered at a time")
    parser.add_argument("--context", type=int, default=2048, help="tokens for each of them")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def _take_standard_output() -> int:
    """What is printed from here on goes to the log; the address alone goes where the owner reads."""
    announce = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return announce


def _end_with_the_owner() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def _parameters(options: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.alias}
    params.hostnames = [HOST]
    params.port = 0
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
    _speculate(params.speculative, options)
    return params


def _speculate(speculative: xllamacpp.CommonParamsSpeculative, options: argparse.Namespace) -> None:
    if options.drafter == "draft":
        speculative.types = [SPECULATION.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = speculative.draft
        draft.mparams.path = str(options.draft_model)
        draft.n_max = MAX_DRAFT_TOKENS
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = options.threads
    elif options.drafter == "ngram":
        speculative.types = [SPECULATION.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_n = NGRAM_SIZE
        speculative.ngram_simple.size_m = NGRAM_DRAFT_TOKENS
        speculative.ngram_simple.min_hits = 1


if __name__ == "__main__":
    main()
