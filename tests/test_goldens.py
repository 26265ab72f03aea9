"""The golden files, and the checker itself. Run: python -m pytest tests/test_goldens.py

The files of the official code are in `../shared/goldens`, which a clone need not have; the fixtures here
are small, made of numbers worked out below without the project's code.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import goldens
from tests.golden import compare, files
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


def clm_arrays_without_masked_tokens():
  """Copy logits all 0: the copy loss is log 2, every LM term 0; the copy bias gets mean(1/2 - 1)."""
  hidden, table = np.zeros((2, 3, 4), np.float32), np.ones((7, 4), np.float32)
  targets = np.array([[5, 6, 5], [6, 1, 1]], np.int32)
  shapes = {"H": (2, 3, 4), "E": (7, 4), "lm_bias": (7,), "w_copy": (4,), "b_copy": ()}
  zeros = {f"posted/grad_L_LM_sum/{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}
  return zeros | {
    "H": hidden,
    "E": table,
    "lm_bias": np.zeros(7, np.float32),
    "w_copy": np.zeros(4, np.float32),
    "b_copy": np.float32(0.0),
    "aux_logits": np.zeros((0, 7), np.float32),
    "targets": targets,
    "src_masked": targets,
    "corrupted": targets,
    "masked": np.zeros((2, 3), np.int32),
    "valid": (targets != 1).astype(np.int32),
    "posted/L_copy_mean": np.float32(np.log(2.0)),
    "posted/grad_L_copy_mean/b_copy": np.float32(-0.5),
    "posted/L_LM_sum": np.float32(0.0),
    "posted/sample_size": np.array(0, np.int32),
  }


def squad_info():
  """One answered question found, one missed: 50 %, and nothing better with "no answer" to one of them."""
  questions = [
    {"id": "q0", "answers": [{"text": "a red fox"}]},
    {"id": "q1", "answers": [{"text": "blue"}]},
  ]
  return {
    "what": "by hand",
    "dataset": [{"paragraphs": [{"qas": questions}]}],
    "predictions": {"q0": "red fox", "q1": "red fox"},
    "na_prob": {"q0": -1.0, "q1": 2.0},
    "exact_raw": {"q0": 1, "q1": 0},
    "f1_raw": {"q0": 1.0, "q1": 0.0},
    "results": {"na_thresh_0.0": {"exact": 50.0, "best_exact_thresh": -1.0}},
    "normalize_answer": {"The  a": ""},
  }


def run(directory, capsys):
  """Exit code and output of the command."""
  code = goldens.main([str(directory)])
  captured = capsys.readouterr()
  return code, captured.out + captured.err


def test_files_that_agree_give_exit_code_0_and_a_line_per_group(tmp_path, capsys):
  write(tmp_path, "b3_packing_small", packing_arrays())
  write(tmp_path, "d_scl_small", contrast_arrays(), CONTRAST)
  write(tmp_path, "c_clm_small", clm_arrays_without_masked_tokens(), {})
  code, output = run(tmp_path, capsys)
  assert code == 0, output
  # 3 slices; a loss and the cosines; 2 losses, 6 gradients, 1 count, src_masked
  assert "3 files, 15 keys compared, 0 files with a miss" in output
  assert "b3_packing_small         slices        3 keys" in output


@pytest.mark.parametrize(
  "make, info, key, difference",
  [
    (packing_arrays, None, "0/complete", 1),
    (contrast_arrays, CONTRAST, "N2_D2_t1.0/loss", 2e-5),
    (contrast_arrays, CONTRAST, "N2_D2_t1.0/cos", 1e-5),
    (clm_arrays_without_masked_tokens, {}, "posted/grad_L_copy_mean/b_copy", 1e-4),
    (clm_arrays_without_masked_tokens, {}, "posted/grad_L_LM_sum/E", 1e-5),
  ],
)
def test_one_changed_value_is_a_miss(tmp_path, capsys, make, info, key, difference):
  arrays = make()
  changed = np.array(arrays[key])
  changed[(0,) * changed.ndim] += changed.dtype.type(difference)
  name = {packing_arrays: "b3_packing_x", contrast_arrays: "d_scl_x"}.get(make, "c_clm_x")
  write(tmp_path, name, arrays | {key: changed}, info)
  code, output = run(tmp_path, capsys)
  assert code == 1
  assert f"MISS  {key}[" in output


@pytest.mark.parametrize(
  "section, key, value, is_miss",
  [
    ("what", None, "other words", False),
    ("f1_raw", "q1", 1e-5, True),
    ("normalize_answer", "The  a", "a", True),
    ("results", "na_thresh_0.0", {"exact": 50.001}, True),
    ("predictions", "q1", "blue", True),
  ],
)
def test_values_of_a_text_kind_are_read_from_its_json_and_one_that_differs_is_a_miss(
  tmp_path, capsys, section, key, value, is_miss
):
  info = squad_info()
  if key is None:
    info[section] = value
  else:
    info[section][key] = value
  (tmp_path / "i_squad_x.json").write_text(json.dumps(info))
  code, output = run(tmp_path, capsys)
  assert code == int(is_miss), output
  assert "not compared" not in output


def _truncated(directory):
  path = directory / "b3_packing_bad.npz"
  path.write_bytes(path.read_bytes()[:200])


def _flipped(directory):
  path = directory / "b3_packing_bad.npz"
  data = bytearray(path.read_bytes())
  data[data.index(b"\x93NUMPY") + 140] ^= 1  # inside the numbers of the first array
  path.write_bytes(bytes(data))


@pytest.mark.parametrize(
  "damage",
  [
    _truncated,
    _flipped,
    lambda directory: (directory / "b3_packing_bad.npz").write_bytes(b""),
    lambda directory: (directory / "b3_packing_bad.npz").unlink(),
    lambda directory: (directory / "b3_packing_bad.json").unlink(),
    lambda directory: (directory / "b3_packing_bad.json").write_text("{"),
    lambda directory: (directory / "b3_packing_bad.json").write_text("[]"),
  ],
)
def test_unreadable_file_is_a_miss_and_the_others_are_still_checked(tmp_path, capsys, damage):
  write(tmp_path, "b3_packing_bad", packing_arrays())
  write(tmp_path, "b3_packing_good", packing_arrays())
  damage(tmp_path)
  code, output = run(tmp_path, capsys)
  assert code == 1
  assert "b3_packing_bad           MISS" in output
  assert "2 files, 3 keys compared, 1 files with a miss" in output


@pytest.mark.parametrize("arrays", [{"unrelated": np.zeros(2)}, {}])
def test_file_of_which_nothing_is_compared_is_a_miss(tmp_path, capsys, arrays):
  write(tmp_path, "d_scl_small", arrays, CONTRAST)
  code, output = run(tmp_path, capsys)
  assert code == 1
  assert "nothing in this file was compared" in output


def test_gradient_that_no_check_knows_is_a_miss(tmp_path, capsys):
  write(tmp_path, "d_scl_small", contrast_arrays() | {"N2_D2_t1.0/grad_other": np.zeros(2)}, CONTRAST)
  code, output = run(tmp_path, capsys)
  assert code == 1
  assert "gradient N2_D2_t1.0/grad_other was not compared" in output


def _checks(kind, theirs, key="grad/a", text=""):
  return Checks(Golden(f"{kind}_x", {"tolerance": text}, {key: np.asarray(theirs, np.float32)}))


def test_gradient_row_that_is_0_in_the_file_must_be_exactly_0():
  theirs = [[0.0, 0.0], [1.0, 0.0]]
  for ours, is_miss in (([[0.0, 0.0], [1.0, 1e-9]], False), ([[0.0, 1e-9], [1.0, 0.0]], True)):
    checks = _checks("j_cocolm", theirs)
    checks.compare("gradients", "grad/a", np.array(ours))
    assert bool(checks.groups["gradients"].misses) == is_miss


def test_shape_and_nan_are_misses():
  for ours in ([1.0], [[1.0, np.nan]], [[1.0, np.inf]]):
    checks = _checks("j_cocolm", [[1.0, 2.0]])
    checks.compare("gradients", "grad/a", np.array(ours))
    assert len(checks.groups["gradients"].misses) == 1


def test_official_nan_asks_only_for_a_finite_value():
  for ours, is_miss in ((5.0, False), (np.nan, True)):
    checks = _checks("f_taco", np.nan, key="masked/tc")
    checks.compare("losses", "masked/tc", np.array(ours))
    assert bool(checks.groups["losses"].misses) == is_miss


def test_the_smaller_of_the_table_and_the_file_is_the_tolerance():
  checks = _checks("j_cocolm", [1.0], text="losses rtol 2e-5; gradients atol 1e-7 rtol 1e-1 (fp32)")
  checks.compare("gradients", "grad/a", np.array([1.0]))
  assert checks.groups["gradients"].tolerance == (1e-7, 1e-3)


@pytest.mark.parametrize(
  "text, group, expected",
  [
    ("last_hidden/hidden_k: atol 2e-5 rtol 2e-4; logits: atol 5e-5 rtol 5e-4", "logits", (5e-5, 5e-4)),
    ("loss rtol 1e-5, grad atol 1e-6", "gradients", (1e-6, 0.0)),
    ("rtol 1e-6 (lr), rtol 1e-5 (params)", "params", (0.0, 1e-5)),
    ("rtol 1e-5", "losses", (0.0, 1e-5)),
    ("exact", "crop", None),
  ],
)
def test_figures_of_a_group_are_read_from_the_files_text(text, group, expected):
  assert compare.figures(text, group) == expected
