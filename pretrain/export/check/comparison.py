"""Compares an imported stock encoder with its class in transformers, to find wrong mappings.

These show in hidden states, not in shapes. Without the export extra a line says that this was skipped.
"""

import importlib.util

import numpy as np

from data.errors import DataError, named_reason, on_one_line
from pretrain.export.check.reference import hidden_states
from pretrain.export.foreign.files import ForeignCheckpoint
from pretrain.export.foreign.recognise import Recognised
from pretrain.export.stock import read as stock_read
from pretrain.models.layers import EncoderConfig

TOLERANCE = 1e-5  # largest |difference| of hidden states, float32 on the CPU
_ROWS, _MOST_LENGTH = 3, 32
_PRECISION = ("dtype", "torch_dtype")  # fields of config.json; the comparison is in float32


def compare(foreign: ForeignCheckpoint, recognised: Recognised, *, pad_id: int) -> str:
  """Compares hidden states of both models for random ids, the last row padded; returns a line for the user.

  DataError: transformers cannot build the model, or hidden states at tokens differ by more than `TOLERANCE`.
  """
  if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
    return "Skipped the comparison with transformers: it is not installed (requirements-export.txt)"
  config = EncoderConfig(**{**recognised.fields, "dtype": "float32"})
  rng = np.random.default_rng(0)
  beyond_the_window = 2 * (config.window // 2) + 2  # shorter rows would not show a wrong one
  length = min(config.max_length, max(_MOST_LENGTH, beyond_the_window if config.has_windows else 0))
  ids = rng.integers(0, config.vocab_size, (_ROWS, length))
  ids[ids == pad_id] = (pad_id + 1) % config.vocab_size
  mask = np.ones_like(ids)
  mask[-1, max(1, length // 2) :] = 0
  ids[mask == 0] = pad_id
  ours = hidden_states(recognised.params["encoder"], ids, mask, config=config, pad_id=pad_id)
  theirs = _hidden(foreign, ids, mask)
  difference = float(np.abs(np.asarray(ours) - theirs)[mask > 0].max())
  if not difference <= TOLERANCE:
    raise DataError(
      f"{foreign.folder}: hidden states differ by {difference:.2g} from transformers' "
      f"{foreign.config.get('model_type')}; expected at most {TOLERANCE:g}, from rounding; its config.json "
      "or tensors have another meaning there"
    )
  return f"Compared with transformers: hidden states differ by at most {difference:.2g}"


def _hidden(foreign: ForeignCheckpoint, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
  """Runs the class of transformers on the same tensors; returns hidden states [rows, length, embed]."""
  import torch
  import transformers

  settings = {name: value for name, value in foreign.config.items() if name not in _PRECISION}
  state = stock_read.in_class(foreign.state, foreign.config["model_type"])
  tensors = {name: torch.tensor(array) for name, array in {**state, **foreign.buffers}.items()}
  verbosity = transformers.logging.get_verbosity()
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  try:
    config = transformers.AutoConfig.for_model(**settings)
    kind = transformers.MODEL_MAPPING[type(config)]
    model = kind.from_pretrained(None, config=config, state_dict=tensors).float().eval()  # pyright: ignore[reportAttributeAccessIssue] (by its type perhaps several classes)
    with torch.no_grad():
      output = model(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))
  except Exception as error:  # any field of a config may raise, with any type
    line = named_reason(error, words=on_one_line(error)[:160])
    raise DataError(f"{foreign.folder}: transformers cannot load it ({line})") from error
  finally:
    transformers.logging.set_verbosity(verbosity)
  return output.last_hidden_state.numpy()[:, : ids.shape[1]]
