"""`python -m pretrain.analysis` runs `lab.analysis`; nothing else in this package refers to the lab."""

import runpy

if __name__ == "__main__":
  runpy.run_module("lab.analysis", run_name="__main__", alter_sys=True)
