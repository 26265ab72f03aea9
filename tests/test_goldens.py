"""The golden files, outputs of the official code in `../shared/goldens`, which a clone need not have.

The checker itself is tried on small files of numbers that are worked out below without the project's code.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests import goldens
from tests.golden import files, modern
from tests.golden.compare import Checks
from tests.golden.files import Golden

SHARED = Path(__file__).resolve().parents[2] / "shared" / "goldens"
# Sub-folders may hold kinds that nothing here computes yet.
SHARED_NAMES = files.names_in(SHARED) if SHARED.is_dir() else []
SHARED_NAMES += [
  f"{path.parent.name}/{path.stem}"
  for path in sorted(SHARED.glob("*/*.npz"))
  if files.kind_of(path.stem) in goldens.CHECKS
]


@pytest.mark.skipif(not SHARED_NAMES, reason="../shared/goldens, the official code's outputs, is not here")
@pytest.mark.parametrize("name", SHARED_NAMES or ["none"])
def test_official_outputs_are_reproduced(name):
  folder, _, name = name.rpartition("/")
  lines, num_keys, misses = goldens.check_file(SHARED / folder, name)
  assert misses == [], "\n".join(lines)
  assert num_keys > 0


def write(directory, name, arrays, info=None):
  """One golden file."""
  np.savez(directory / f"{name}.npz", **arrays)
  (directory / f"{name}.json").write_text(json.dumps({"tolerance": "exact"} if info is None else info))


def packing_arrays():
  """Three sentences of 3, 4 and 2 tokens in blocks of 5."""
  return {
    "0/sizes": np.array([3, 4, 2], np.int32),
    "0/block": np.array(5, np.int32),
    "0/eos": np.array([[0, 3], [3, 7], [7, 9]], np.int32),
    "0/none": np.array([[0, 5], [5, 9]], np.int32),
    "0/complete": np.array([[0, 3], [3, 7], [7, 9]], np.int32),
  }


def contrast_arrays():
  """Two orthogonal pairs: cosine 1 with the partner, 0 with the others; loss -log(e / (e + 2))."""
  vectors = np.eye(2, dtype=np.float32)
  loss = np.float32(np.log((np.e + 2.0) / np.e))
  cosines = np.tile(vectors, (2, 2))
  return {"N2_D2_t1.0/z_mlm": vectors, "N2_D2_t1.0/z_crop": 3.0 * vectors, "N2_D2_t1.0/loss": loss} | {
    "N2_D2_t1.0/cos": cosines
  }


CONTRAST = {"tolerance": "loss rtol 1e-5, grad atol 1e-6"}


def _check(directory: Path, name: str, arrays, info=None) -> tuple[int, list[str]]:
  """The number of compared keys and the misses of one golden file."""
  write(directory, name, arrays, info)
  _, keys, misses = goldens.check_file(directory, name)
  return keys, misses


def test_the_checker_compares_every_key_and_one_changed_value_is_a_miss(tmp_path):
  for name, arrays, info, keys in (
    ("b3_packing_x", packing_arrays(), None, 3),  # slices
    ("d_scl_x", contrast_arrays(), CONTRAST, 2),  # the loss and the cosines
  ):
    assert _check(tmp_path, name, arrays, info) == (keys, [])
  changed = [("b3_packing_x", packing_arrays(), None, "0/complete", 1)]
  changed += [("d_scl_x", contrast_arrays(), CONTRAST, f"N2_D2_t1.0/{key}", 2e-5) for key in ("loss", "cos")]
  for name, arrays, info, key, difference in changed:
    arrays[key] = np.array(arrays[key])
    arrays[key][(0,) * arrays[key].ndim] += arrays[key].dtype.type(difference)
    _, misses = _check(tmp_path, name, arrays, info)
    assert len(misses) == 1 and misses[0].startswith(f"{key}["), (key, misses)
  _, misses = _check(
    tmp_path, "d_scl_x", contrast_arrays() | {"N2_D2_t1.0/grad_other": np.zeros(2)}, CONTRAST
  )
  assert len(misses) == 1  # a gradient that nothing compares
  assert len(_check(tmp_path, "d_scl_x", {"unrelated": np.zeros(2)}, CONTRAST)[1]) == 1


def test_a_head_with_one_output_is_judged_by_squared_errors_and_a_curved_decay_is_not_taken_for_a_line(
  tmp_path,
):
  assert modern.mean_loss(jnp.array([[2.0], [-1.0]]), jnp.ones(2)) == 2.5  # (1 + 4) / 2
  steps, config = np.array([0, 5], np.int32), np.array([1.0, 0.0, 10.0, 0.0, 1.0], np.float32)
  arrays = {"lr/0/cfg": config, "lr/0/steps": steps, "lr/0/lr": np.array([1.0, 0.5], np.float32)}
  arrays |= {"lr/1/cfg": config + np.eye(5, dtype=np.float32)[4], "lr/1/steps": steps}
  arrays |= {"lr/1/lr": np.array([1.0, 0.25], np.float32)}
  assert _check(tmp_path, "h_schedule_x", arrays) == (2, ["lr/1/lr: not supported: power 2"])


def test_zero_rows_nan_shapes_and_tolerances_are_judged():
  def misses(kind, theirs, ours, key="grad/a", text=""):
    checks = Checks(Golden(f"{kind}_x", {"tolerance": text}, {key: np.asarray(theirs, np.float32)}))
    group = "gradients" if key.startswith("grad") else "losses"
    checks.compare(group, key, np.array(ours))
    return len(checks.groups[group].misses)

  table = [
    [0.0, 0.0],
    [1.0, 0.0],
  ]  # a row that is 0 in the file must be 0 exactly, elsewhere there is a tolerance
  assert misses("j_cocolm", table, [[0.0, 0.0], [1.0, 1e-9]]) == 0
  assert misses("j_cocolm", table, [[0.0, 1e-9], [1.0, 0.0]]) == 1
  for ours in ([1.0], [[1.0, np.nan]], [[1.0, np.inf]]):
    assert misses("j_cocolm", [[1.0, 2.0]], ours) == 1
  assert (
    misses("f_taco", np.nan, 5.0, key="masked/tc") == 0
  )  # where the official code has NaN: any finite number
  assert misses("f_taco", np.nan, np.nan, key="masked/tc") == 1
  # The smaller of the file's tolerance and the table's counts.
  text = "losses rtol 2e-5; gradients atol 1e-7 rtol 1e-1 (fp32)"
  assert misses("j_cocolm", [1.0], [1.0009], text=text) == 0
  assert misses("j_cocolm", [1.0], [1.002], text=text) == 1


def test_a_damaged_file_is_a_miss_and_the_others_are_still_checked(tmp_path, capsys):
  def flipped(data: bytes) -> bytes:
    at = data.index(b"\x93NUMPY") + 140  # inside the numbers of the first array
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

  write(tmp_path, "b3_packing_good", packing_arrays())
  for suffix, damage in ((".npz", flipped), (".npz", lambda data: data[:200]), (".json", lambda data: b"{")):
    write(tmp_path, "b3_packing_bad", packing_arrays())
    path = tmp_path / f"b3_packing_bad{suffix}"
    path.write_bytes(damage(path.read_bytes()))
    assert goldens.main([str(tmp_path)]) == 1
    assert "2 files, 3 keys compared, 1 files with a miss" in capsys.readouterr().out
