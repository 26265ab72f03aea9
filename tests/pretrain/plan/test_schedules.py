"""How long kernels are by what libtpu writes of them, from small texts of its form."""

import types

import pytest

from pretrain import chips
from pretrain.plan import forecast, schedules, targets
from pretrain.plan.program import parse

HEAD = """= control target key start
LH: loop header
= control target key end
     0   :  { %s9_s0 = inlined_call_operand.hbm [shape: bf16[8,512,768]] }
   0x1   :  { %s11 = smov 0 }
"""
# A grid of 6 x 8 places, in 2 turns more, since arrays come one turn before their place and leave one after.
LOOP = """   0x2 LB: > { %s1_s1 = sadd.s32 1, %s2_s2  ;;  %p1_p1 = scmp.ge.s32.totalorder %s1_s1, 8 }
   0x3   : > { %p2_p2 = scmp.ge.s32.totalorder %s3_s3, 6  ;;  %p9_p9 = scmp.ge.s32.totalorder %s3_s3, 48 }
   0x4   : > { %p3_p3 = scmp.ne.s32.totalorder %s4_s4, 0  ;;  %p8_p8 = pnand %p1_p1, %p2_p2 }
   0x5   : > { %5 = sbr.rel (%p8_p8) target = $region24 }
   0x6   : > { %6 = dma.hbm_to_vmem %s1 }
   0x7 PF: > { %7 = sbr.rel (%p3_p3) target = $region105 } /* Start/End empty region 24 :: Start region 104 */
   0x8   : > { %v1_v1 = vld [vmem:[%s1_s1]] }
   0x9   : > { %v2_v2 = vld [vmem:[%s1_s1 + $0x8]] }
   0xa PF: > { %v3_v3 = vadd.f32 %v1_v1, %v2_v2 } /* End region 104 :: Start/End empty region 105 */
   0xb   : > { %p5_p5 = scmp.ge.s32.totalorder %s5_s5, 50 /* loop exit test */ }
"""
TAIL = "   0xc   :  { %12 = vsyncpa [#allocation8], 1 }\n"


def test_bundles_count_as_often_as_they_run():
  # Of the 10 bundles in the loop 2 run at one place of an axis: of 50 turns in 50 // 6, the shorter axis.
  assert schedules.total(HEAD + LOOP + TAIL) == 3 + 50 * 8 + 8 * 2


def test_without_axes_to_tell_from_all_bundles_run_in_every_turn():
  assert schedules.total(HEAD + LOOP.replace("%s3_s3, 6 ", "%s3_s3, 7 ") + TAIL) == 3 + 50 * 10


def test_a_kernel_without_a_loop_runs_once_and_loops_within_the_loop_are_not_counted():
  assert schedules.total(HEAD + TAIL) == 3
  assert schedules.total(HEAD + LOOP.replace("0x8   : >", "0x8   : >>") + TAIL) is None
  assert schedules.total(HEAD + LOOP.replace("loop exit test", "") + TAIL) is None
  assert schedules.total("nothing of the kind") is None


CALL_TEXT = """HloModule kernel, is_scheduled=true

ENTRY %main (q: bf16[8,512,768]) -> bf16[8,512,768] {
  %q = bf16[8,512,768]{2,1,0} parameter(0)
  ROOT %attention_forward.3 = bf16[8,512,768]{2,1,0} custom-call(%q), custom_call_target="tpu_custom_call"
}
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
  """A folder for schedules instead of that of the process."""
  monkeypatch.setattr(schedules, "_folder", lambda: types.SimpleNamespace(name=tmp_path))
  return tmp_path


def _seconds(chip: dict) -> dict[str, float]:
  facts = {
    "measured_flops": 1e12,
    "bandwidth": 1e12,
    "clock": 1e9,
    "bandwidth_share": 0.5,
    "launch_seconds": 0,
  }
  described = chips.Chip("chip", "", hbm_bytes=1e9, link_bandwidth=1e9, platform="tpu", **facts | chip)
  return forecast.seconds_by_part(parse(CALL_TEXT), targets.Target("", described, []))


def test_a_kernel_takes_its_schedule_or_its_bytes_and_without_a_schedule_a_roofline(written):
  moved = 2 * 8 * 512 * 768 * 2
  assert _seconds({}) == {"kernels without an estimate": pytest.approx(moved / 0.5e12)}
  (written / "17-attention_forward.3-01-final_bundles.txt").write_text(HEAD + LOOP + TAIL)
  (written / "18-attention_forward.31-01-final_bundles.txt").write_text(HEAD)
  assert _seconds({}) == {"kernels by their schedules": pytest.approx(moved / 0.5e12)}
  assert _seconds({"bandwidth": 1e15}) == {"kernels by their schedules": pytest.approx(419e-9)}
  schedules.forget()
  assert list(_seconds({})) == ["kernels without an estimate"]


def test_libtpu_is_asked_for_schedules_unless_the_user_has_it_dump(written, monkeypatch):
  monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_scoped_vmem_limit_kib=16384")
  for _ in range(2):
    schedules.ask_for_them()
    asked = schedules.os.environ["LIBTPU_INIT_ARGS"].split()
    assert asked[:2] == ["--xla_tpu_scoped_vmem_limit_kib=16384", f"--xla_jf_dump_to={written}"]
    assert len(asked) == 4
