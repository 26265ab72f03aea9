"""Times of TPU steps by their text: cycles of loops, lookups, exchange, and the bundles of a schedule."""

import pytest

from lab.speed import estimate
from pretrain.mesh import chips

# A loop of five turns with a product in it, a lookup in a table of 100 rows, an exchange between two devices.
PROGRAM = """\
HloModule step, is_scheduled=true

%body (p: (s32[], f32[8,16])) -> (s32[], f32[8,16]) {
  %p = (s32[], /*index=1*/f32[8,16]{1,0:T(8,128)}) parameter(0)
  %x = f32[8,16]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %y = f32[8,16]{1,0} dot(%x, %x), lhs_contracting_dims={1}, op_name="layers/up", "estimated_cycles":"300"
  ROOT %t = (s32[], f32[8,16]{1,0:T(8,128)}) tuple(%p, %y)
}

%condition (p: (s32[], f32[8,16])) -> pred[] {
  %p = (s32[], f32[8,16]{1,0:T(8,128)}) parameter(0)
  %limit = s32[] constant(5)
  ROOT %less = pred[] compare(%p, %limit), direction=LT
}

ENTRY %main (a: f32[8,16], table: f32[100,1000], ids: s32[8]) -> f32[8,1000] {
  %a = f32[8,16]{1,0:T(8,128)} parameter(0)
  %table = f32[100,1000]{1,0:T(8,128)} parameter(1)
  %ids = s32[8]{0:T(128)} parameter(2)
  %loop = (s32[], f32[8,16]{1,0:T(8,128)}) while(%a), condition=%condition, body=%body
  %sum = f32[8,16]{1,0:T(8,128)} all-reduce(%a), replica_groups={{0,1}}, "estimated_cycles":"7"
  ROOT %rows = f32[8,1000]{1,0:T(8,128)} fusion(%table, %ids), kind=kCustom, calls=%lookup
}
"""


def test_cycles_are_counted_by_turns_and_lookups_by_what_they_move():
  program = estimate.parse(PROGRAM)
  assert sum(run.cycles for run in program) == 5 * 300 + 7
  assert estimate.total_flops(program) == 5 * 2 * 8 * 16 * 16
  assert estimate.collectives(program) == {"all-reduce": {"bytes": 512, "runs": 1, "overlapping": 0}}
  moved = {"dot": (5, 5 * 2 * 512), "all-reduce": (1, 2 * 512), "fusion": (1, 4 * (100_000 + 8 + 8_000))}
  found = {name: (row["runs"], row["bytes"]) for name, row in estimate.kernels(program).items()}
  assert found == moved
  seconds = estimate.seconds_by_part(program, chips.parse("v5e:2x2"))
  lookup = 2 * 4 * (8 + 8_000) / (0.9 * 819e9)  # ids and rows, read and written, but not the table
  assert lookup < estimate.LAUNCH
  expected = {"layers": 1_500 / 1.5e9, "unnamed": 7 / 1.5e9, "kernels without an estimate": estimate.LAUNCH}
  assert seconds == pytest.approx(expected)
  wide = estimate.parse(PROGRAM.replace("1000]", "100000]"))
  seconds = estimate.seconds_by_part(wide, chips.parse("v5e:2x2"))
  assert seconds["kernels without an estimate"] == pytest.approx(2 * 4 * (8 + 800_000) / (0.9 * 819e9))


def test_a_kernels_cycles_are_its_bundles_times_the_turns_of_its_grid():
  # One bundle before and one behind the loop; in it four, of which one runs at one of three positions alone.
  bundles = """\
     0   :  { %s1 = smov 0  }
   0x1 LB: > { %p1 = scmp.ne.s32.totalorder %s2, 0 ;; %p2 = scmp.ge.s32.totalorder %s3, 3 }
   0x2   : > { %9 = sbr.rel (%p1) target bundleno = 4  }
   0x3   : > { %v1 = vadd.f32 %v0, %v0  ;; %p4 = scmp.ge.s32.totalorder %s3, 2 }
   0x4   : > { %p3 = scmp.ge.s32.totalorder %s1, 8 /* loop exit test */ }
   0x5   :  { %s9 = smov 1  }
"""
  # Eight turns for a grid of 3 x 2, of which two start and end the pipeline. The bundle runs at the first
  # position of the shorter axis, in half of the turns.
  assert estimate.total_cycles(bundles) == 2 + 8 * 4 - 4 * 1
  nested = bundles.replace("0x3   : >", "0x3   : >>")  # a loop in the loop
  assert estimate.total_cycles(nested) is None
  # In kernels that have one the first axis is the fastest.
  assert estimate.total_cycles(nested, inner=5) == round(2 + 8 * 3 + 8 * 5 / 3)
  assert estimate.total_cycles("nothing") is None
