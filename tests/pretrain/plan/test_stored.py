"""Figures of compiled steps that must not grow unnoticed: bytes on CPU, cycles on a TPU.

They are the compiler's, the same on every machine. Where a change lowers one for good, lower it here too.
"""

import pytest

from pretrain.plan.forecast import lower_step, memory
from tests.pretrain.plan.tpu_process import SMALL, output_of
from tests.pretrain.small_run import small_config, small_run

MARGIN = 1.3  # XLA's choices move with its version
TEMPORARY_BYTES = 338_600  # of a step of 8 x 32 tokens, `small_run`'s masked LM; all terms: test_sharded.py
CYCLES = 830_400  # of roberta_tiny, 32 x 64 tokens on one v5e


def test_the_bytes_of_a_step(small_records):
  compiled = lower_step(small_run(small_config("mlm", small_records))).compile()
  assert memory(compiled, "cpu")["temporaries"] <= MARGIN * TEMPORARY_BYTES


@pytest.mark.nightly
def test_the_cycles_of_a_step_on_a_tpu():
  printed = output_of(
    *SMALL,
    "print(forecast(config, targets.describe('v5e:2x2')).cycles)",
  )
  assert int(printed.split()[-1]) <= MARGIN * CYCLES
