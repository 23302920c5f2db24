"""The experiment file that `qualab init` writes."""

EXPERIMENT = """\
# A comparison of two endpoints that differ in the drafter alone.  Run it with: qualab run experiment.yaml
# Command-line flags and QUALAB_* environment variables win over this file.

baseline: http://127.0.0.1:8000/v1     # drafter off
candidate: http://127.0.0.1:8001/v1    # drafter on
model: my-model                        # as both endpoints serve it

# Suites: release (default: generative, exercises the drafter), published-34 (lm-eval's official forms), demo.
# Or names of lm-eval's tasks and groups.
tasks: [release]

# What will count as equal, fixed before the run.
margin: 0.02          # 2 percentage points
# margins: {gsm8k: 0.03}          # others by benchmark, task or metric; the narrower name wins
# score_bounds: {reward: [-1, 1]} # lowest and highest score, where they are not 0 and 1
# objective: non_inferiority      # only a loss matters; default: equivalence
# strict: true                    # a loss inside the margin is a REGRESSION too: for a drafter said to be lossless
alpha: 0.05           # level of each one-sided test
# allow_unobserved: true          # let a verdict stand though neither /metrics nor answers tell that the drafter ran
# drafter_costs: {draft: 0.2, overhead: 0.05}   # in steps of the model: shows from which length on drafting pays
# power: 0.8                      # chance of proving the margin that `qualab plan` sizes for
# expected_missing: 0.001         # share of each arm's answers that `qualab plan` expects to be missing
# missing_lost: 0.25              # share of the pairs without an answer that the worst case takes as lost; default: all

# What both arms are made of. Without a digest and a commit (or a folder) nothing is signed off: docs/pinning.md
# pins:
#   image: vllm/vllm-openai@sha256:DIGEST   # `docker buildx imagetools inspect NAME:TAG` prints the digest
#   revision: COMMIT                        # of the checkpoint, not a branch
#   checkpoint: /models/my-model            # or its folder here: the plan holds its hash
# pods: {baseline: serving/off-0, candidate: serving/on-0}    # kubectl verifies their image; or, for docker:
# containers: {baseline: off, candidate: on}

# How requests are sent; the same in both arms.
concurrency: 8        # in flight in each arm
timeout: 300          # seconds an attempt may take
# max_attempts: 5
# max_wait: 600       # seconds that a request waits where its server asks for it (429, Retry-After)

# data_dir: /data/qualab        # data sets as local JSONL, where there is no hub (docs/tasks.md)
# apply_chat_template: true     # chat completions (true) or completions (false); default: as the suite says
# num_fewshot: 5                # default: as each task says
# gen_kwargs: {temperature: 0.7}    # unknown names are refused, unless allow_extra: true
# repeats: 1                    # answers an item; needs a temperature
# limit: 40                     # items a task, to try things out; never signed off
# noise_floor: {runs: 1, concurrency: 16}   # how much the baseline differs from itself, at another load
# looks: 5                      # stop at one of so many looks if all is proven, or harm is plain; default: never
# sequential: true              # the candidate after the baseline, on one device (--managed PAIR); never signed off
# seed: 1234
# label: my-release-1.2
# output_path: out              # also write lm-eval's files
# db: postgresql://user@host/qualab

# Keys never stand here: set QUALAB_API_KEY (or QUALAB_BASELINE_API_KEY, QUALAB_CANDIDATE_API_KEY), or
# api_key_file: /run/secrets/qualab
"""
