"""How long kernels are by what libtpu writes of them: from small texts of its form, and from a real one."""

import json
import subprocess

import pytest

from pretrain.mesh import chips
from pretrain.plan import forecast, schedules, targets
from pretrain.plan.program import parse
from tests.pretrain.plan.tpu_process import SMALL, output_of

HEAD = """= control target key start
LH: loop header
= control target key end
     0   :  { %s9_s0 = inlined_call_operand.hbm [shape: bf16[8,512,768]] }
   0x1   :  { %s11 = smov 0 }
"""
# A grid of 6 x 8 places, in 2 turns more, since arrays come one turn before their place and leave one after.
LOOP = """   0x2 LB: > { %s1_s1 = sadd.s32 1, %s2_s2  ;;  %p1_p1 = scmp.ge.s32.totalorder %s1_s1, 8 }
   0x3   : > { %p2_p2 = scmp.ge.s32.totalorder %s3_s3, 6  ;;  %p9_p9 = scmp.ge.s32.totalorder %s3_s3, 48 }
   0x4   :  {}
   0x5   : > { %p3_p3 = scmp.ne.s32.totalorder %s4_s4, 0  ;;  %p8_p8 = pnand %p1_p1, %p2_p2 }
   0x6   : > { %5 = sbr.rel (%p8_p8) target bundleno = 8 (0x8), region = 24 }
   0x7   : > { %6 = dma.hbm_to_vmem %s1 }
   0x8 PF: > { %7 = sbr.rel (%p3_p3) target bundleno = 11 (0xb), region = 105 }
   0x9   : > { %v1_v1 = vld [vmem:[%s1_s1]] }
   0xa   :  {}
   0xb PF: > { %v3_v3 = vadd.f32 %v1_v1, %v2_v2 } /* Start/End empty region 105 */
   0xc   : > { %p5_p5 = scmp.ge.s32.totalorder %s5_s5, 50 /* loop exit test */ }
"""
TAIL = "   0xd   :  { %12 = vsyncpa [#allocation8], 1 }\n"


def test_bundles_count_as_often_as_they_run_and_waiting_counts():
  # Of the 11 bundles in the loop 2 run at one place of an axis: of 50 turns in 50 // 6, the shorter axis.
  assert schedules.total(HEAD + LOOP + TAIL) == 3 + 50 * 9 + 8 * 2


def test_without_axes_to_tell_from_all_bundles_run_in_every_turn():
  assert schedules.total(HEAD + LOOP.replace("%s3_s3, 6 ", "%s3_s3, 7 ") + TAIL) == 3 + 50 * 11


def test_a_kernel_that_is_jumped_over_before_its_first_place_runs_in_every_turn():
  # As it is of kernels for chips with two cores, where the condition is kept in memory and read as a number.
  whole = LOOP.replace(
    "   0x4   :  {}", "   0x4   : > { %9 = sbr.rel (%p3_p3) target bundleno = 12 (0xc), region = 9 }"
  )
  assert schedules.total(HEAD + whole + TAIL) == schedules.total(HEAD + LOOP + TAIL)


def test_a_kernel_without_a_loop_runs_once_and_loops_within_the_loop_are_not_counted():
  assert schedules.total(HEAD + TAIL) == 3
  assert schedules.total(HEAD + LOOP.replace("0x9   : >", "0x9   : >>") + TAIL) is None
  assert schedules.total(HEAD + LOOP.replace("loop exit test", "") + TAIL) is None
  assert schedules.total("nothing of the kind") is None


CALL_TEXT = """HloModule kernel, is_scheduled=true

ENTRY %main (q: bf16[8,512,768]) -> bf16[8,512,768] {
  %q = bf16[8,512,768]{2,1,0} parameter(0)
  ROOT %k = bf16[8,512,768] custom-call(%q), custom_call_target="tpu_custom_call", backend_config={"b":1}
}
"""
CONFIG = '{"b": 1}'


def _seconds(**chip) -> dict[str, float]:
  facts = {"measured_flops": 1e12, "bandwidth": 1e12, "clock": 1e9, "bandwidth_share": 0.5} | chip
  described = chips.Chip("chip", "", hbm_bytes=1e9, link_bandwidth=1e9, launch_seconds=0, **facts)
  return forecast.seconds_by_part(parse(CALL_TEXT), targets.Target("machine", described, []))


def test_a_kernel_takes_its_schedule_or_its_bytes_and_without_a_schedule_a_roofline(monkeypatch):
  moved = 2 * 8 * 512 * 768 * 2
  known = {}
  monkeypatch.setattr(schedules, "of_kernels", lambda program, target: known if target == "machine" else None)
  assert _seconds() == {"kernels without an estimate": pytest.approx(moved / 0.5e12)}
  known[CONFIG] = 4_000
  assert _seconds() == {"kernels by their schedules": pytest.approx(moved / 0.5e12)}
  assert _seconds(bandwidth=1e15) == {"kernels by their schedules": pytest.approx(4_000e-9)}


def test_the_child_is_given_each_kernel_once_and_what_it_does_not_know_is_left_out(monkeypatch):
  asked = []

  def run(command, *, input, **options):
    asked.append((command[2:4], json.loads(input)))
    return subprocess.CompletedProcess(command, 0, stdout="libtpu says a word\n[417]\n")

  monkeypatch.setattr(schedules.subprocess, "run", run)
  assert schedules.of_kernels(parse(CALL_TEXT), "v5e:2x2") == {CONFIG: 417}
  wide = [[[8, 512, 768], "bfloat16"]]
  assert asked == [(["pretrain.plan.schedules", "v5e:2x2"], [[CONFIG, [wide, wide]]])]
  monkeypatch.setattr(
    schedules.subprocess, "run", lambda *a, **b: subprocess.CompletedProcess(a, 1, stdout="")
  )
  assert schedules.of_kernels(parse(CALL_TEXT), "v5e:2x2") == {}


def test_the_kernels_of_a_step_have_schedules():
  printed = output_of(
    *SMALL,
    "config.model.scan_unroll = 1",
    "print(*forecast(config, targets.describe('v5e:2x2')).parts, sep=', ')",
  )
  assert "kernels by their schedules" in printed
