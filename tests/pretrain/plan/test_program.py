"""Programs small enough to be counted by hand, and XLA's text forms one by one."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from pretrain.mesh import chips
from pretrain.plan import collectives, costs, forecast, roofline, targets
from pretrain.plan.program import parse, shapes

MESH = {"data": 4, "fsdp": 2, "tensor": 1}

# A loop of 5 turns without a stated count, with a loop of 3 in it, whose kernel takes 10 cycles; a branch of 100
# cycles and one of 7; a kernel without cycles that says what it does.
# ruff: noqa: E501
TPU_TEXT = """HloModule jit_f, is_scheduled=true

%fused (p: bf16[4,8]) -> bf16[4,8] {
  %p = bf16[4,8]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %tanh.1 = bf16[4,8]{1,0:T(8,128)(2,1)S(1)} tanh(%p)
}

%inner_condition (a: (s32[], bf16[4,8])) -> pred[] {
  %a = (s32[]{:T(128)}, bf16[4,8]{1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%a), index=0
  %limit = s32[]{:T(128)} constant(3)
  ROOT %less = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%inner (b: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %b = (s32[], bf16[4,8]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %x = bf16[4,8]{1,0} get-tuple-element(%b), index=1
  %work = bf16[4,8]{1,0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/jvp(Trunk)/while/body/layers/attention/exp"}, backend_config={"window_config":{"estimated_cycles":"10"}}
  ROOT %pair = (s32[], bf16[4,8]{1,0}) tuple(%j, %work)
}

%outer_condition (c: (s32[], bf16[4,8])) -> pred[] {
  %c = (s32[], bf16[4,8]{1,0}) parameter(0)
  %k = s32[] get-tuple-element(%c), index=0
  %five = s32[] constant(5)
  ROOT %below = pred[] compare(%k, %five), direction=LT
}

%outer (d: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %d = (s32[], bf16[4,8]{1,0}) parameter(0)
  ROOT %turns = (s32[], bf16[4,8]{1,0}) while(%d), condition=%inner_condition, body=%inner
}

%applied (e: (bf16[4,8])) -> bf16[4,8] {
  %e = (bf16[4,8]{1,0}) parameter(0)
  %y = bf16[4,8]{1,0} get-tuple-element(%e), index=0
  ROOT %update = bf16[4,8]{1,0} fusion(%y), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/mul"}, backend_config={"estimated_cycles":"100"}
}

%skipped (g: (bf16[4,8])) -> bf16[4,8] {
  %g = (bf16[4,8]{1,0}) parameter(0)
  %z = bf16[4,8]{1,0} get-tuple-element(%g), index=0
  ROOT %kept = bf16[4,8]{1,0} copy(%z), backend_config={"estimated_cycles":"7"}
}

ENTRY %main (q: (s32[], bf16[4,8]), flag: s32[]) -> bf16[4,8] {
  %q = (s32[], /*index=1*/bf16[4,8]{1,0}) parameter(0)
  %flag = s32[] parameter(1)
  %loop = (s32[], bf16[4,8]{1,0}) while(%q), condition=%outer_condition, body=%outer
  %out = bf16[4,8]{1,0} get-tuple-element(%loop), index=1
  %stated = bf16[4,8]{1,0} custom-call(%out), custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"body":"(abc","cost_estimate":{"flops":"640","bytes_accessed":"64"}}}
  %some = (bf16[4,8]{1,0}) tuple(%stated)
  ROOT %end = bf16[4,8]{1,0} conditional(%flag, %some, %some), branch_computations={%skipped, %applied}
}
"""


def compiled_text(function, *arguments):
  return jax.jit(function).lower(*arguments).compile().as_text()


def runs_of(program, kind):
  return [run for run in program.executions if run.instruction.kind == kind]


def test_shapes_and_their_bytes():
  found = shapes("(bf16[4,8]{1,0:T(8,128)(2,1)}, f32[], pred[3], s4[5])")
  assert [shape.sizes for shape in found] == [(4, 8), (), (3,), (5,)]
  assert [shape.bytes for shape in found] == [64, 4, 3, 3]


def test_cycles_count_loops_by_their_turns_and_the_longest_branch():
  program = parse(TPU_TEXT)
  assert costs.cycles(program) == 5 * 3 * 10 + 100
  assert costs.cycles_by_part(program) == {"attention": 150, "update": 100}
  assert program.unknown_loops == ()
  assert costs.kernels(program) == {"fusion": 16, "custom-call tpu_custom_call": 1}


def test_a_loop_whose_turns_nothing_tells_is_named():
  text = TPU_TEXT.replace("constant(5)", "parameter(1)")
  program = parse(text)
  assert program.unknown_loops == ("loop",)
  assert costs.cycles(program) == 3 * 10 + 100


def test_text_that_is_no_program_is_refused():
  with pytest.raises(ValueError, match="ENTRY"):
    parse("module @jit_f {}")


def test_a_scan_and_a_loop_in_it():
  def function(weights, x):
    def layer(x, weight):
      return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ weight), x), None

    return jax.lax.scan(layer, x, weights)[0]

  program = parse(compiled_text(function, jnp.ones((7, 16, 16)), jnp.ones((32, 16))))
  assert {run.times for run in runs_of(program, "while")} == {1, 7}
  assert roofline.total_flops(program) == 7 * 3 * 2 * 32 * 16 * 16


@pytest.mark.parametrize(
  ("spec", "axes", "size"),
  [(("data", None), ("data",), 2 * 64 * 4), ((("data", "fsdp"), None), ("data", "fsdp"), 64 * 4)],
)
def test_an_all_reduce_has_its_axes_and_bytes(spec, axes, size):
  mesh = jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=(AxisType.Auto,) * 3)

  def sums(x):  # [8, columns], its rows on `axes`
    return jax.lax.with_sharding_constraint(jnp.sum(x, axis=0), NamedSharding(mesh, PartitionSpec()))

  place = NamedSharding(mesh, PartitionSpec(*spec))
  rows = jax.ShapeDtypeStruct((8, size // 4), jnp.float32, sharding=place)
  found = collectives.collectives(parse(compiled_text(sums, rows)), MESH)
  assert [(item.kind, item.axes, item.bytes, item.times) for item in found] == [("all-reduce", axes, size, 1)]
  assert collectives.summary(found) == {
    f"all-reduce over {'+'.join(axes)}": {"bytes": size, "runs": 1, "overlapping": 0}
  }


@pytest.mark.parametrize(
  ("groups", "axes"),
  [
    ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ("fsdp",)),
    ("replica_groups=[4,2]<=[8]", ("fsdp",)),
    ("replica_groups=[2,4]<=[4,2]T(1,0)", ("data",)),
    ("replica_groups=[1,8]<=[8]", ("data", "fsdp")),
    ("replica_groups=mesh['x'=4,'y'=2] {'x'}", ("data",)),
    ("replica_groups=mesh['x'=4,'y'=2] {'y'}", ("fsdp",)),
    ("replica_groups={}", ("data", "fsdp")),
    ("source_target_pairs={{0,2},{2,4}}", ("data",)),
    ("replica_groups={{0},{1},{2},{3},{4},{5},{6},{7}}", ()),
  ],
)
def test_groups_become_axes(groups, axes):
  text = f"ENTRY %main (p: f32[8]) -> f32[8] {{\n  ROOT %r = f32[8]{{0}} all-reduce(%p), {groups}\n}}\n"
  assert [item.axes for item in collectives.collectives(parse(text), MESH)] == [axes]


def test_started_and_awaited_collectives_overlap():
  text = """%wrapped (p: f32[8]) -> f32[16] {
  %p = f32[8]{0} parameter(0)
  ROOT %g = f32[16]{0} all-gather(%p), dimensions={0}, replica_groups=[4,2]<=[8]
}

ENTRY %main (q: f32[8]) -> f32[16] {
  %q = f32[8]{0} parameter(0)
  %s = ((f32[8]{0}), f32[16]{0}) async-start(%q), calls=%wrapped
  %d = f32[16]{0} async-done(%s)
  %started = (f32[8]{0}, f32[16]{0}) all-gather-start(%q), dimensions={0}, replica_groups=[4,2]<=[8]
  ROOT %done = f32[16]{0} all-gather-done(%started)
}
"""
  found = collectives.collectives(parse(text), MESH)
  assert [(item.kind, item.bytes, item.overlaps) for item in found] == [("all-gather", 64, True)] * 2


def test_the_kernels_of_attention_on_gpus_that_compute_scores_count_their_products_and_others_none():
  wide, sums = "bf16[2,8,32]{2,1,0}", "f32[2,4,1,8]{3,2,1,0}"

  def call(operands: int, of: str = "%query") -> str:
    names = ", ".join(([of] * 9 + ["%query"] * 4)[:operands])
    return f'custom-call({names}), custom_call_target="triton_kernel_call"'

  text = f"""HloModule kernels

ENTRY %main (query: bf16[2,8,32], three: bf16[2,8,96]) -> bf16[2,8,32] {{
  %query = {wide} parameter(0)
  %three = bf16[2,8,96]{{2,1,0}} parameter(1)
  %forward = ({wide}, {sums}) {call(9)}
  %keys = ({wide}, {wide}, bf16[2,4,64,64]{{3,2,1,0}}) {call(12)}
  %bias = f32[4,1,1,128]{{3,2,1,0}} custom-call(%query), custom_call_target="triton_kernel_call"
  %norm = ({wide}, {wide}) custom-call(%query, %query), custom_call_target="triton_kernel_call"
  %packed = (bf16[2,8,96]{{2,1,0}}, bf16[1]{{0}}, bf16[2,4,64,64]{{3,2,1,0}}) {call(12, "%three")}
  ROOT %queries = {wide} {call(4)}
}}
"""
  product = 2 * 2 * 8 * 8 * 32  # rows x length^2 x width, twice
  assert roofline.total_flops(parse(text)) == (2 + 4 + 4) * product


def test_a_kernel_that_writes_into_one_of_its_arrays_changes_no_more_than_it_reads():
  text = """HloModule in_place

ENTRY %main (table: f32[1000,64], rows: f32[10,64]) -> (f32[1000,64], f32[5]) {
  %table = f32[1000,64]{1,0} parameter(0)
  %rows = f32[10,64]{1,0} parameter(1)
  ROOT %added = (f32[1000,64]{1,0}, f32[5]{0}) custom-call(%rows, %table), custom_call_target="triton_kernel_call", output_to_operand_aliasing={{0}: (1, {})}
}
"""
  (kernel,) = roofline.kernels(parse(text), chips.parse("h200").chip)
  assert kernel.bytes == 2 * 10 * 64 * 4 + 5 * 4


LOOKUP_TEXT = """HloModule lookup, is_scheduled=true

%taken (table: f32[1000,64], ids: s32[500]) -> f32[500,64] {
  %table = f32[1000,64]{1,0} parameter(0)
  %ids = s32[500]{0} parameter(1)
  ROOT %rows = f32[500,64]{1,0} gather(%table, %ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,64}
}

ENTRY %main (t: f32[1000,64], i: s32[500]) -> f32[500,64] {
  %t = f32[1000,64]{1,0} parameter(0)
  %i = s32[500]{0} parameter(1)
  %lookup = f32[500,64]{1,0} fusion(%t, %i), kind=kCustom, calls=%taken, metadata={op_name="jit(f)/gather"}
  %moved = (f32[500,64]{1,0}, f32[500,64]{1,0}, u32[]) copy-start(%lookup)
  ROOT %end = f32[500,64]{1,0} copy-done(%moved)
}
"""


def test_a_lookup_on_a_tpu_takes_the_time_of_the_rows_that_it_moves():
  chip = chips.Chip(
    "chip", "", 1e12, 1e6, 1e9, platform="tpu", clock=1e9, bandwidth_share=0.5, launch_seconds=0
  )
  found = forecast.seconds_by_part(parse(LOOKUP_TEXT), targets.Target("", chip, []))
  moved = 2 * 500 * 64 * 4 + 500 * 4  # rows read and written, and their numbers
  assert found == {"kernels without an estimate": pytest.approx(moved / 0.5e6)}
