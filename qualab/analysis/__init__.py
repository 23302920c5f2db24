"""From stored scores to evidence and verdicts, one duty a module; `qualab.analysis.analyse` joins them."""
