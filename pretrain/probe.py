"""`python -m pretrain.probe` runs `lab.analysis.probe`; nothing else in this package refers to the lab."""

import runpy

if __name__ == "__main__":
  runpy.run_module("lab.analysis.probe", run_name="__main__", alter_sys=True)
