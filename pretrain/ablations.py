"""`python -m pretrain.ablations` runs `lab.studies`, which nothing else here knows."""

import runpy

if __name__ == "__main__":
  runpy.run_module("lab.studies", run_name="__main__", alter_sys=True)
