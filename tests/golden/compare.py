"""Comparing with a golden file: one table of tolerances, and what was compared."""

import dataclasses
import re

import numpy as np

from tests.golden.files import Golden

EXACT = (0.0, 0.0)
# kind -> group of terms -> (atol, rtol). The figure in the file's own JSON is obeyed where it is smaller.
TOLERANCES = {
  "a_hf": {"hidden": (2e-5, 2e-4), "logits": (5e-5, 5e-4)},
  "b_relpos": {"buckets": EXACT},
  "b2_data": {"crop": EXACT, "mask": EXACT},
  "b3_packing": {"slices": EXACT},
  "c_clm": {"tokens": EXACT, "logits": (1e-6, 1e-5), "losses": (0.0, 1e-5), "gradients": (1e-6, 1e-4)},
  "d_scl": {"cosines": (1e-6, 0.0), "losses": (0.0, 1e-5), "gradients": (1e-6, 0.0)},
  "e_amos": {"tokens": EXACT, "values": (1e-6, 1e-5), "gradients": (1e-6, 2e-4)},
  "f_taco": {"losses": (0.0, 2e-5), "gradients": (1e-6, 2e-4)},
  "g_rtd": {"counts": EXACT, "losses": (0.0, 1e-5), "gradients": (0.0, 1e-5)},
  "h_schedule": {"lr": (0.0, 1e-6), "params": (0.0, 1e-5), "clipping": (0.0, 1e-5)},
  "i_glue": {"metrics": (0.0, 1e-6)},
  "i_squad": {"scores": (0.0, 1e-6), "texts": EXACT},
  "j_amos": {
    "tokens": EXACT,
    "hidden": (3e-5, 3e-4),
    "logits": (3e-5, 3e-4),
    "losses": (0.0, 2e-5),
    "gradients": (2e-5, 2e-3),
  },
  "j_cocolm": {
    "tokens": EXACT,
    "hidden": (3e-5, 3e-4),
    "logits": (3e-5, 3e-4),
    "losses": (0.0, 2e-5),
    "gradients": (1e-5, 1e-3),
  },
  "k_tokenizer": dict.fromkeys(("pretokenize", "tokens", "ids", "decode", "sequences", "dictionary"), EXACT),
}
_PRE_NORM = {
  "hidden": (2e-5, 2e-4),
  "logits": (5e-5, 5e-4),
  "losses": (0.0, 1e-5),
  "gradients": (2e-5, 1e-3),
  "rope": (1e-7, 0.0),
}
TOLERANCES["n_maelm"] = TOLERANCES["j_amos"]
TOLERANCES["n_removal"] = {"mask": EXACT}
TOLERANCES["p_metro"] = {"losses": (0.0, 1e-5), "gradients": (1e-6, 1e-4), "counts": EXACT}
_SHARING = {"tables": (0.0, 1e-6), "tokens": EXACT, "hidden": (3e-5, 3e-4), "logits": (3e-5, 3e-4)}
_SHARING |= {"losses": (0.0, 2e-5), "gradients": (2e-5, 2e-3)}
TOLERANCES |= dict.fromkeys(("m_gdes", "m2_gdes"), _SHARING)
TOLERANCES["q_schedules"] = {"lr": (0.0, 1e-6), "sizes": EXACT}
TOLERANCES["q_masks"] = {"words": EXACT}
TOLERANCES["m_ngram"] = {"windows": EXACT}
TOLERANCES["q_tiling"] = {"values": EXACT}
TOLERANCES["q_stableadamw"] = {"params": (0.0, 1e-5)}
TOLERANCES |= dict.fromkeys(("l_modernbert", "l2_modernbert", "m_ultrabert", "m2_ultrabert"), _PRE_NORM)
_WORDS = {"gradients": "grad", "losses": "loss", "values": "value"}  # how the files' own texts name a group
_FIGURE = re.compile(r"\b(atol|rtol)\s+([0-9.]+(?:e-?[0-9]+)?)")
_IS_GRADIENT = re.compile(r"(^|/)h?grad|_grad/")


def figures(text: str, group: str) -> tuple[float, float] | None:
  """(atol, rtol) that a file's `tolerance` text gives for a group of terms; None if it names none.

  Clauses are separated by ';' or ',' and name their terms beside the figures ("losses rtol 1e-5"); a
  figure that a clause does not give is 0; a clause of figures alone is for every group.
  """
  word = _WORDS.get(group, group)
  for clause in re.split(r"[;,]", text):
    found = dict(_FIGURE.findall(clause))
    names = _FIGURE.sub("", clause).strip()
    if found and (word in names or not re.search(r"[a-z]", names)):
      return float(found.get("atol", 0.0)), float(found.get("rtol", 0.0))
  return None


@dataclasses.dataclass
class Group:
  """What was found for one group of terms."""

  tolerance: tuple[float, float]
  keys: int = 0
  max_error: float = 0.0
  misses: list[str] = dataclasses.field(default_factory=list)


class Checks:
  """Compares our values with those of one file, key by key."""

  def __init__(self, golden: Golden):
    self.golden = golden
    self.groups: dict[str, Group] = {}
    self.compared: set[str] = set()

  def _group(self, name: str) -> Group:
    if name not in self.groups:
      tolerance = TOLERANCES[self.golden.kind][name]
      given = figures(str(self.golden.info.get("tolerance", "")), name)
      if given is not None:
        tolerance = tuple(min(ours, theirs) for ours, theirs in zip(tolerance, given))
      self.groups[name] = Group(tolerance)
    return self.groups[name]

  def hold(self, group: str, key: str, *, condition: bool, found: str) -> None:
    """Records a key for which `condition` must be true, for values drawn at random by both sides."""
    self.golden[key]
    self.compared.add(key)
    self._group(group).keys += 1
    if not condition:
      self._group(group).misses.append(f"{key}: {found}")

  def compare(self, group: str, key: str, ours) -> None:
    """Compares one array, element by element, and its shape.

    Where the official value is NaN (a mean over nothing) ours has only to be finite. A row of a gradient
    that is exactly 0 in the file must be exactly 0 here: something was stopped, or never read.
    """
    theirs, ours = np.asarray(self.golden[key], np.float64), np.asarray(ours).astype(np.float64)
    found = self._group(group)
    if ours.shape != theirs.shape:
      self.compared.add(key)
      found.misses.append(f"{key}: shape {ours.shape}, expected {theirs.shape}")
      return
    self.compared.add(key)
    found.keys += 1
    atol, rtol = found.tolerance
    theirs = np.where(np.isnan(theirs) & np.isfinite(ours), ours, theirs)
    with np.errstate(invalid="ignore"):
      error = np.where(ours != theirs, np.abs(ours - theirs), 0.0)
    limit = atol + rtol * np.abs(np.where(np.isfinite(theirs), theirs, 0.0))
    if _IS_GRADIENT.search(key):
      row = np.atleast_1d(theirs)
      is_zero_row = np.all(row == 0.0, axis=-1, keepdims=True)
      limit = np.where(is_zero_row, 0.0, limit).reshape(theirs.shape)
    found.max_error = max(found.max_error, float(np.max(error, initial=0.0)))
    is_wrong = ~(error <= limit)
    if is_wrong.any():
      place = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error - limit)), error.shape)
      at = ",".join(str(i) for i in place)
      found.misses.append(f"{key}[{at}] is {ours[place]:.9g}, expected {theirs[place]:.9g}")

  def compare_text(self, group: str, key: str, ours: str | list[str]) -> None:
    """Compares a text or a list of texts, exactly."""
    theirs = self.golden[key].tolist()
    self.hold(group, key, condition=ours == theirs, found=f"is {ours!r}, expected {theirs!r}")

  def compare_all(self, group: str, prefix: str, ours: dict) -> None:
    """Compares every key of the file under a prefix with the value of its name."""
    for name in self.golden.under(prefix):
      if name not in ours:
        self._group(group).misses.append(f"{prefix}{name}: there is no such value here")
        continue
      self.compare(group, prefix + name, ours[name])

  def compare_present(self, group: str, ours: dict) -> None:
    """Compares the keys of a dict that the file has; a file may hold fewer."""
    for key, value in ours.items():
      if key in self.golden:
        self.compare(group, key, value)

  def finish(self, *, inputs: str) -> list[str]:
    """Misses that concern the whole file: nothing compared, or a gradient nobody compared.

    Args:
      inputs: pattern of gradient keys that were given to us and are no results.
    """
    misses = [] if self.compared else ["nothing in this file was compared"]
    for key in self.golden.arrays:
      if _IS_GRADIENT.search(key) and key not in self.compared and not re.match(inputs, key):
        misses.append(f"gradient {key} was not compared")
    return misses
