"""The classes of transformers that an encoder is exported as and imported from, a row each, and their choice.

A new class is a row of `CLASSES`, one of `names.TENSORS` (its tensors) or `names.PRE_NORM`, and what its
config.json has beside BERT's fields in `config`. The self-check of an export and the comparison of an import
run the class itself, so that a wrong row shows.

Source: transformers 5.23, configuration_*.py and modeling_*.py of the classes.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, NoReturn

from data.errors import ConfigError
from pretrain.export.task_fields import class_activation
from pretrain.settings.model import EncoderSettings

FINE_TUNED = ("classification", "tagging", "question_answering")  # heads of tasks
_POST: dict[str, Any] = {
  "norm_placement": "post",
  "norm": "layernorm",
  "norm_bias": True,
  "embedding_norm": True,
  "position": "learned",
  "mlp": "plain",
  "activation": "gelu",
  "attention_bias": True,
  "mlp_bias": True,
}
_PRE: dict[str, Any] = {
  "norm_placement": "pre",
  "position": "rope",
  "relative_position": "none",
  "mlp": "gated",
  "num_segments": 0,
}
_RMS = _PRE | {"norm": "rmsnorm", "norm_bias": False, "embedding_norm": False}
_NO_RELATIVE = {"relative_position": "none"}
BUCKETS = {"relative_position": "t5", "relative_buckets": 32, "relative_max_distance": 128}


class StockClass(NamedTuple):
  """The computation of a class of transformers, and the differences of its files from BERT's."""

  name: str  # of its models in transformers: 'MPNet' of MPNetForMaskedLM
  encoder: Mapping[str, Any]  # fields of `model` that the class fixes
  reason: str  # why it is chosen, for the user
  always_relative: bool = False  # there are relative positions in every model
  has_windows: bool = False
  has_groups: bool = False  # heads of keys and values may be fewer than those of queries
  has_projection: bool = False  # from embeddings of another width
  heads: Collection[str] = FINE_TUNED  # heads of tasks that it has a class for
  prefix: str = "model"  # of the encoder's tensors in a class with a head
  pad_id: int = 0  # where config.json has none
  is_pad_fixed: bool = False  # the code works with this padding id alone
  counts_from_pad: bool = False  # the first token has row pad_id + 1 of the position table, as in RoBERTa
  has_segments: bool = True  # there is a table of segments
  counts_texts: bool = False  # its own tokenizer gives the second text of a pair segment 1
  has_pooler: bool = False  # AutoModel has one, which nothing here trains
  layer_norm_eps: float = 1e-12  # where config.json has none
  dropout: float = 0.1  # where config.json has none
  rope_theta: float = 10_000.0  # where config.json has none
  renamed: Mapping[str, str] = {}  # fields of BERT's config.json that have another name
  supported: Mapping[str, tuple] = {}  # fields of config.json: values that are read; the first is written
  absent: Mapping[str, Any] = {}  # what the class has where config.json lacks a field, if that is not read
  pools_beside: bool = False  # a text classifier's pooler is beside the encoder, not in it

  @property
  def is_pre_norm(self) -> bool:
    """Whether a branch reads normed states, as in `names.PRE_NORM`."""
    return self.encoder["norm_placement"] == "pre"

  def first_position(self, pad_id: int) -> int:
    """Returns the first token's row in the position table."""
    return pad_id + 1 if self.counts_from_pad else 0


def _roberta(name: str) -> StockClass:
  """Returns RoBERTa's class under one of its names, which differ in the tokenizer alone."""
  encoder, reason = _POST | _NO_RELATIVE, "no relative positions, and positions after the padding id"
  return StockClass(name, encoder, reason, prefix="roberta", pad_id=1, counts_from_pad=True, has_pooler=True)


CLASSES = {  # model_type in config.json: class; the first that computes a model is chosen
  "mpnet": StockClass(
    "MPNet",
    _POST | BUCKETS | {"num_segments": 0},
    "T5 buckets 32/128, no segments and padding id 1, as in MPNet's class",
    prefix="mpnet",
    pad_id=1,
    is_pad_fixed=True,
    counts_from_pad=True,
    has_segments=False,
    has_pooler=True,
    supported={"relative_attention_num_buckets": (BUCKETS["relative_buckets"],)},
  ),
  "layoutlmv3": StockClass(
    "LayoutLMv3",
    _POST,
    "text only, a row for every distance",
    always_relative=True,
    prefix="layoutlmv3",
    pad_id=1,
    counts_from_pad=True,
    layer_norm_eps=1e-5,
  ),
  "bert": StockClass(
    "Bert", _POST | _NO_RELATIVE, "no relative positions", prefix="bert", has_pooler=True, counts_texts=True
  ),
  "electra": StockClass(
    "Electra",
    _POST | _NO_RELATIVE,
    "no relative positions",
    has_projection=True,
    prefix="electra",
    counts_texts=True,
  ),
  "roberta": _roberta("Roberta"),
  "xlm-roberta": _roberta("XLMRoberta"),
  "camembert": _roberta("Camembert"),
  "distilbert": StockClass(
    "DistilBert",
    _POST | _NO_RELATIVE | {"num_segments": 0, "layer_norm_eps": 1e-12},
    "no relative positions and no segments",
    prefix="distilbert",
    has_segments=False,
    renamed={
      "hidden_size": "dim",
      "num_hidden_layers": "n_layers",
      "num_attention_heads": "n_heads",
      "intermediate_size": "hidden_dim",
      "hidden_dropout_prob": "dropout",
      "attention_probs_dropout_prob": "attention_dropout",
      "hidden_act": "activation",
    },
  ),
  "deberta-v2": StockClass(
    "DebertaV2",
    _POST | {"position": "none", "relative_position": "disentangled", "num_segments": 0},
    "disentangled attention",
    prefix="deberta",
    has_segments=False,
    layer_norm_eps=1e-7,
    pools_beside=True,
    supported={
      "relative_attention": (True,),
      "pos_att_type": ("p2c|c2p", "c2p|p2c", ["p2c", "c2p"], ["c2p", "p2c"]),
      "share_att_key": (True,),
      "norm_rel_ebd": ("layer_norm",),
      "position_biased_input": (False,),
      "type_vocab_size": (0,),
      "conv_kernel_size": (None, 0),
      "pooler_hidden_act": ("gelu",),
      "legacy": (True, False),
    },
    absent={
      "relative_attention": False,
      "pos_att_type": None,
      "share_att_key": False,
      "norm_rel_ebd": "none",
      "position_biased_input": True,
    },
  ),
  "nomic_bert": StockClass(
    "NomicBert",
    {name: value for name, value in _POST.items() if name != "activation"}
    | _NO_RELATIVE
    | {"position": "rope", "mlp": "gated", "attention_bias": False, "mlp_bias": False},
    "post-norm layers, rotary positions, gated MLPs without biases",
    heads=("classification", "tagging"),
    prefix="nomic_bert",
    counts_texts=True,
    dropout=0.0,
    rope_theta=1000.0,
    supported={"hidden_act": ("silu", "gelu"), "partial_rotary_factor": (None, 1, 1.0)},
  ),
  "modernbert": StockClass(
    "ModernBert",
    _PRE | {"norm": "layernorm", "embedding_norm": True},
    "pre-norm layers, rotary positions, gated MLPs, LayerNorm",
    has_windows=True,
    pad_id=50_283,
    layer_norm_eps=1e-5,
  ),
  "eurobert": StockClass(
    "EuroBert",
    _RMS,
    "pre-norm layers, rotary positions, gated MLPs, RMSNorm and no windows",
    has_groups=True,
    heads=("tagging",),
    pad_id=128_001,
    layer_norm_eps=1e-5,
  ),
  "ultrabert": StockClass(
    "Ultrabert",
    _RMS,
    "pre-norm layers, rotary positions, gated MLPs, RMSNorm and windows",
    has_groups=True,
    has_windows=True,
    prefix="ultrabert",
    layer_norm_eps=1e-6,
  ),
}
# Of classes equally near, the first: a norm on embeddings is less of a change than another kind of norm.
_NEAREST = ("deberta-v2", "layoutlmv3", "bert", "eurobert", "ultrabert", "modernbert")


class Choice(NamedTuple):
  """A chosen layout, and the reason that the user sees."""

  layout: str  # a key of `CLASSES`, or 'torch'
  reason: str


def refuse(layout: str, why: str) -> NoReturn:
  """Raises a ConfigError: the layout cannot represent this model, with the reason and alternatives."""
  raise ConfigError(
    f"--to={layout} cannot represent this model exactly: {why}; choose another layout\n"
    "  --to=auto\n  --to=torch"
  )


def choose(
  config: EncoderSettings,
  *,
  pad_id: int,
  heads: Collection[str],
  activation: str = "tanh",
  origin: str = "",
) -> Choice:
  """Returns the first class that represents an encoder and its heads exactly; ConfigError if none does.

  The class `origin`, of the checkpoint that training began with, is the first, if it is one of `CLASSES`.
  Then ELECTRA's is the first for a model with an RTD head, because only it has a slot for that head.
  `activation` is the classification head's.
  """
  if origin in CLASSES and not _faults(origin, config, pad_id, heads, activation):
    return Choice(origin, "the class of the checkpoint that training began with")
  order = sorted(CLASSES, key=lambda layout: not (layout == "electra" and "rtd" in heads))
  faults = {layout: _faults(layout, config, pad_id, heads, activation) for layout in order}
  layout = next((layout for layout in order if not faults[layout]), None)
  if layout is None:
    nearest = min(_NEAREST, key=lambda layout: len(faults[layout]))
    raise ConfigError(
      f"export: no class of transformers computes this encoder; the nearest is {nearest}, but "
      f"{faults[nearest][0]}; export it under this project's names\n  --to=torch"
    )
  reason = CLASSES[layout].reason
  if layout == "layoutlmv3":
    reason += f"; not MPNet: {faults['mpnet'][0]}"
  elif layout in ("bert", "electra") and "classification" in heads:
    reason += f", and {activation} in the classification head"
  elif layout == "electra":
    reason += ", and ELECTRA's class has a slot for the RTD head"
  elif layout == "ultrabert" and not config.has_windows:
    reason = f"{CLASSES['eurobert'].reason}, but eurobert cannot hold it: {faults['eurobert'][0]}"
  return Choice(layout, reason)


def check_layout(
  layout: str, config: EncoderSettings, *, pad_id: int, heads: Collection[str], activation: str = "tanh"
) -> None:
  """Raises ConfigError, with the reason, if a class cannot represent an encoder and its heads exactly."""
  if faults := _faults(layout, config, pad_id, heads, activation):
    refuse(layout, faults[0])


def _faults(
  layout: str, config: EncoderSettings, pad_id: int, heads: Collection[str], activation: str
) -> list[str]:
  """Explains why a class cannot represent an encoder and its heads; [] if it can."""
  stock = CLASSES[layout]
  faults = [
    f"model.{name} is {getattr(config, name)!r}, and the class has {value!r}"
    for name, value in stock.encoder.items()
    if getattr(config, name) != value
  ]
  if not stock.has_windows and config.has_windows:
    faults.append(f"some layers have a window of {config.window} tokens, and the class has none")
  if not stock.has_groups and config.kv_heads != config.num_heads:
    faults.append(f"model.num_kv_heads is {config.num_kv_heads}, and the class has one for each head")
  if not stock.has_projection and config.token_size != config.hidden_size:
    faults.append(f"model.embedding_size is {config.embedding_size}, and the class has hidden_size")
  if stock.always_relative and config.relative_position not in ("t5", "official"):
    faults.append(f"model.relative_position is {config.relative_position!r}, but the class has biases")
  if stock.is_pad_fixed and pad_id != stock.pad_id:
    faults.append(f"the padding id is {pad_id}, but the class fixes it to {stock.pad_id}")
  if layout == "layoutlmv3" and config.hidden_size % 2:
    faults.append(f"hidden_size is {config.hidden_size}, but the class needs an even one for its coordinates")
  faults += [
    f"it has no class for {head}" for head in FINE_TUNED if head in heads and head not in stock.heads
  ]
  theirs = class_activation(layout)
  if "classification" in heads and not stock.is_pre_norm and activation != theirs:
    faults.append(f"the class has {theirs} in its classification head, this model has {activation}")
  return faults
