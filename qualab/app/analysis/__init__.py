"""From stored scores to evidence and verdicts, one duty a module; `qualab.app.analyse` joins them."""
