"""The file that `qualab pair init` writes."""

PAIR = """\
# Two vLLM servers that differ in the drafter alone.
#   qualab serve-pair pair.yaml                        serve both until Ctrl-C
#   qualab run experiment.yaml --managed pair.yaml     serve both, compare them, stop both
#                                                      (--sequential: one after the other, on one device)
#   qualab pair render pair.yaml --format kubernetes   manifests (or: compose)

model: my-org/my-model                # a name on the hub, or a folder with the checkpoint
revision: ""                          # the commit on the hub: without it results are of a model that may change
served_model_name: my-model

# What the candidate gets and the baseline does not. Nothing else may differ.
speculative_config:
  method: ngram
  num_speculative_tokens: 4
  prompt_lookup_max: 4

# vLLM's flags for both arms, with dashes or underscores. true is a flag without a value, false its --no- form.
args:
  max_model_len: 8192
  max_num_seqs: 8
  seed: 0
  # gpu_memory_utilization: 0.45      # where both share one GPU

# The environment of both servers, in addition to that of `qualab`. Keys never stand here: VLLM_API_KEY and HF_TOKEN
# are taken from the environment.
env:
  HF_HUB_OFFLINE: "1"
  VLLM_SERVER_DEV_MODE: "1"           # opens /server_info, so that both configurations are compared before a run
  # On a CPU, lest one arm be many times slower than the other:
  # OMP_NUM_THREADS: "1"
  # VLLM_CPU_OMP_THREADS_BIND: nobind
  # VLLM_CPU_KVCACHE_SPACE: "4"
  # LD_PRELOAD: path/to/libiomp5.so

# Where each arm runs: port, gpus, and variables that only place a process (VLLM_CPU_OMP_THREADS_BIND: 0-15).
baseline:
  port: 8000
  gpus: "0"
candidate:
  port: 8001
  gpus: "1"

# image: vllm/vllm-openai@sha256:...  # for `qualab pair render`, and what results are pinned to
# command: [vllm, serve]              # or [path/to/another/vllm, serve]
# host: 127.0.0.1
# log_dir: pair-logs                  # baseline.log and candidate.log, written anew at each start
# ready_timeout: 900                  # seconds from the start to a 200 from /health
"""
