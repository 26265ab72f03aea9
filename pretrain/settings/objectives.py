"""Fields, rules and FLOP of every objective, and the table of all of them. Imports no jax."""

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from ml_collections import ConfigDict

from pretrain.settings.fields import Count, CountOrZero, Limit, NotNegative, Positive


class Paper(enum.StrEnum):
  """Citations of papers; the member's name in lower case is the prefix of the paper's recipe names."""

  COCO_LM = (
    "Meng, Xiong, Bajaj, Tiwary, Bennett, Han, Song. COCO-LM: Correcting and Contrasting Text "
    "Sequences for Language Model Pretraining. NeurIPS 2021."
  )
  AMOS = (
    "Meng, Xiong, Bajaj, Tiwary, Bennett, Han, Song. Pretraining Text Encoders with Adversarial "
    "Mixture of Training Signal Generators. ICLR 2022."
  )
  TACO = (
    "Fu, Zhou, Yang, Tang, Liu, Liu, Li. Contextual Representation Learning beyond Masked Language "
    "Modeling. ACL 2022."
  )
  ELECTRA = (
    "Clark, Luong, Le, Manning. ELECTRA: Pre-training Text Encoders as Discriminators Rather Than "
    "Generators. ICLR 2020."
  )
  MAE_LM = (
    "Meng, Krishnan, Wang, Wang, Mao, Fang, Ghazvininejad, Han, Zettlemoyer. Representation Deficiency in "
    "Masked Language Modeling. ICLR 2024."
  )
  METRO_LM = (
    "Bajaj et al. METRO: Efficient Denoising Pretraining of Large Scale Autoencoding Language Models with "
    "Model Generated Signals. 2022."
  )
  ROBERTA = "Liu et al. RoBERTa: A Robustly Optimized BERT Pretraining Approach. 2019."
  BERT = (
    "Devlin, Chang, Lee, Toutanova. BERT: Pre-training of Deep Bidirectional Transformers for Language "
    "Understanding. NAACL 2019."
  )


def crop_size(fraction: float, length: int) -> int:
  """Returns the tokens in a crop of a sequence: a fraction of its `length`, or if above 1, that number."""
  return int(fraction * length) if fraction <= 1 else int(fraction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
  """Config fields of an objective, with its rules and FLOP.

  Its loss is in pretrain/objectives/<name>.py, because settings import no jax: a class derived from this one,
  with `Loss` behind its name, `init`, `totals` and `__call__`.

  Attributes:
    name: name of its group of fields.
    paper: citation for a model card.
    reads: required inputs. 'masks': [MASK] at the selected tokens; 'replaced': other tokens there;
      'unmasked': the tokens that are not selected, and nothing in place of the others;
      'crop': a crop of the original text, with the objective's fields `crop_fraction` and `crop_add_cls`.
    weight: factor of its terms in the loss; 0 disables the objective, its head, its pass and its metrics.
  """

  name: ClassVar[str]
  paper: ClassVar[str]
  reads: ClassVar[tuple[Literal["masks", "replaced", "unmasked", "crop"], ...]] = ()

  weight: NotNegative

  @property
  def terms(self) -> tuple[str, ...]:
    """Names of its loss terms: the keys of the dict that `totals` of its loss class returns."""
    return (f"{self.name}_loss",)

  @property
  def reads_slots_only(self) -> bool:
    """Whether it reads the encoder's hidden states at the selected tokens only."""
    return False

  @property
  def own_layers(self) -> int:
    """The number of layers of its own, as wide as the encoder's, that whole rows pass."""
    return 0

  def rules(self, config: ConfigDict) -> Iterator[str]:
    """Yields each broken rule about its fields; called only if the objective is enabled."""
    del config
    yield from ()

  def remarks(self, records: Mapping[str, Any]) -> Iterator[str]:
    """Lines for the log about the records that a run reads, of which `records` is the description."""
    del records
    yield from ()

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns {part: FLOP of its forward pass per token of the batch}, without the passes of the encoder.

    `model` has the fields under `model`; `masked` is the number of selected tokens per token.
    """
    del model, masked
    return {}

  def crop_tokens(self, length: int) -> int:
    """Returns the tokens in the crop of a sequence of `length` tokens; 0 if the objective reads no crop."""
    del length
    return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrast(Objective):
  """Settings of a contrastive objective, which contrasts rows in groups of consecutive rows of the batch."""

  group_size: CountOrZero

  def rules(self, config: ConfigDict) -> Iterator[str]:
    """Yields each broken rule about groups: of one row, and larger than a microbatch."""
    group, train = f"objectives.{self.name}.group_size", config.train
    if (self.group_size or train.batch_size) == 1:
      yield f"{group} train.batch_size: a group of one row has no negatives; expected at least 2 rows"
    if self.group_size == 0 and train.microbatches > 1:
      one = "--config.train.microbatches=1"
      yield f"{group} train.microbatches: they split a group of the whole batch; set a size, or use\n  {one}"


def _table_size(model: Mapping[str, Any]) -> int:
  """Returns the width of the token table, which older configs do not name."""
  return model.get("embedding_size") or model["hidden_size"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLM(Objective):
  """Settings of masked LM: predicts original tokens at masked positions, or at all positions."""

  name = "mlm"
  paper = Paper.BERT
  reads = ("masks",)

  positions: Literal["masked", "all"]
  head: Literal["transform", "table"] = "transform"

  @property
  def terms(self) -> tuple[str, ...]:
    """The name of its loss term, which depends on `positions`; see `Objective.terms`."""
    return ("masked_lm_loss",) if self.positions == "masked" else ("token_lm_loss",)

  @property
  def reads_slots_only(self) -> bool:
    """Whether it predicts masked tokens only; see `Objective.reads_slots_only`."""
    return self.positions == "masked"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the head's transform and softmax; see `Objective.flops`."""
    width, positions = model["hidden_size"], 1.0 if self.positions == "all" else masked
    table = width if self.head == "table" else _table_size(model)
    transform = 0 if self.head == "table" else width * table
    return {"mlm head": positions * 2 * (transform + table * model["vocab_size"])}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokenDetection(Objective):
  """Settings of replaced token detection: classifies every token as original or replaced."""

  name = "rtd"
  paper = Paper.ELECTRA
  reads = ("replaced",)

  head: Literal["linear", "dense", "context"]

  def rules(self, config: ConfigDict) -> Iterator[str]:
    """Yields a line if the copy mechanism would read a head that needs a whole text."""
    others = config.objectives
    if self.head == "context" and (others.all_token.weight or (others.clm.weight and others.clm.copy)):
      names = "objectives.rtd.head objectives.clm.weight objectives.all_token.weight"
      yield f"{names}: copying reads this head token by token\n  --config.objectives.rtd.head=linear"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the binary head; see `Objective.flops`."""
    width = model["hidden_size"]
    return {"rtd head": 2 * width + (0 if self.head == "linear" else 2 * width**2)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorrectiveLM(Objective):
  """Settings of corrective LM: predicts the original token at masked positions, with or without copying."""

  name = "clm"
  paper = Paper.COCO_LM
  reads = ("replaced",)

  form: Literal["mixture", "weighted"]
  stop_gradient: bool
  copy: bool

  def rules(self, config: ConfigDict) -> Iterator[str]:
    """Yields a line unless some loss trains the copy head."""
    is_trained = config.objectives.rtd.weight or config.objectives.all_token.weight
    if self.copy and self.stop_gradient and not is_trained:
      yield (
        "objectives.clm.copy objectives.clm.stop_gradient objectives.rtd.weight: no loss trains the copy "
        "head; use one of\n  --config.objectives.rtd.weight=50\n  --config.objectives.clm.copy=false"
      )

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the softmax at the selected tokens; see `Objective.flops`."""
    return {"clm head": masked * 2 * _table_size(model) * model["vocab_size"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllTokenLM(Objective):
  """Settings of All-Token MLM: predicts every token with the copy mechanism, without a separate copy loss."""

  name = "all_token"
  paper = Paper.ELECTRA
  reads = ("replaced",)

  def rules(self, config: ConfigDict) -> Iterator[str]:
    """Yields a line unless corrective LM, which has the same heads, is off."""
    if config.objectives.clm.weight:
      names = "objectives.all_token.weight objectives.clm.weight"
      yield f"{names}: both train the same heads on the same positions; switch one of them off"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the softmax at every token; see `Objective.flops`."""
    return {"all_token head": 2.0 * _table_size(model) * model["vocab_size"]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceContrast(Contrast):
  """Settings of sequence contrast: a corrupted sequence and a crop of its original are partners."""

  name = "scl"
  paper = Paper.COCO_LM
  reads = ("crop",)

  crop_fraction: Positive
  crop_add_cls: bool
  temperature: Positive
  head: Literal["cls", "projection"]
  projection_size: CountOrZero
  max_segments: CountOrZero = 0

  def crop_tokens(self, length: int) -> int:
    """Returns the tokens in a crop, at most `length`; see `Objective.crop_tokens`.

    Crops of segments begin where their segments do, so the whole row is computed.
    """
    return length if self.max_segments else min(crop_size(self.crop_fraction, length), length)

  def remarks(self, records: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line if a row has more segments than are contrasted; see `Objective.remarks`."""
    most = records.get("most_segments_in_a_record", 0)
    if most > self.max_segments:
      yield (
        f"objectives.scl.max_segments={self.max_segments}: a row has up to {most} texts, of which the "
        f"first are contrasted; the metric scl_segments_dropped is the fraction of the others"
      )

  def rules(self, config: ConfigDict) -> Iterator[str]:
    """Yields each broken rule about groups, segments, crop lengths and the projection head."""
    yield from super().rules(config)
    both, has_segments = "objectives.scl.max_segments data.packing", config.data.packing == "segments"
    if has_segments and not self.max_segments:
      yield f"{both}: expected the most texts of a row\n  --config.objectives.scl.max_segments=16"
    if self.max_segments and not has_segments:
      yield f"{both}: a row has one text\n  --config.objectives.scl.max_segments=0"
    length, crop = config.data.length, crop_size(self.crop_fraction, config.data.length)
    if not 1 <= crop <= length:
      yield (
        f"objectives.scl.crop_fraction data.length: a crop has {crop} tokens; expected 1 to {length} tokens"
      )
    if self.head == "cls" and self.projection_size:
      yield (
        "objectives.scl.head objectives.scl.projection_size: head 'cls' has no projection; use one of\n"
        "  --config.objectives.scl.head=projection\n  --config.objectives.scl.projection_size=0"
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenAlignment(Contrast):
  """Settings of token alignment: contrasts a token's neighbours with tokens of other sequences."""

  name = "taco"
  paper = Paper.TACO

  anchors: Literal["all", "masked", "unmasked"]
  window: Annotated[int, Limit(2)]  # 1 has no neighbours
  num_negatives: Count
  temperature: Positive

  def rules(self, config: ConfigDict) -> Iterator[str]:
    """Yields each broken rule about groups and a window longer than the sequence."""
    yield from super().rules(config)
    if self.window // 2 >= config.data.length:
      yield "objectives.taco.window data.length: half the window is as long as the sequence"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of an anchor's products with all candidates; see `Objective.flops`."""
    return {"contrast": 2.0 * model["hidden_size"] * (self.num_negatives + 1)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedAutoencoder(Objective):
  """Settings of MAE-LM: the encoder never sees masked tokens, and a small decoder predicts them."""

  name = "mae"
  paper = Paper.MAE_LM
  reads = ("unmasked",)

  decoder_layers: Count
  decoder_positions: Literal["own", "shared"]
  decoder_relative_position: bool
  decoder_dropout: Literal["zero", "encoder"]

  @property
  def own_layers(self) -> int:
    """The layers of the decoder; see `Objective.own_layers`."""
    return self.decoder_layers

  def rules(self, config: ConfigDict) -> Iterator[str]:
    """Yields each broken rule about its input, readers of masked tokens, and what its decoder needs."""
    if config.corruption.kind != "mask" or config.corruption.mask_token_rate != 1:
      yield (
        "objectives.mae.weight corruption.kind corruption.mask_token_rate: the chosen tokens are left out\n"
        "  --config.corruption.kind=mask --config.corruption.mask_token_rate=1.0 "
        "--config.corruption.random_token_rate=0.0"
      )
    for name in ("mlm", "taco"):
      if config.objectives[name].weight:
        both, off = f"objectives.mae.weight objectives.{name}.weight", f"--config.objectives.{name}.weight=0"
        yield f"{both}: {name} reads masked tokens, which the encoder does not see\n  {off}"
    if config.objectives.scl.weight and config.corruption.mask_special == "all":
      names = "objectives.mae.weight objectives.scl.weight corruption.mask_special"
      yield f"{names}: [CLS] may be left out\n  --config.corruption.mask_special=sep_only"
    if config.model.embedding_size not in (0, config.model.hidden_size):
      names = "objectives.mae.weight model.embedding_size model.hidden_size"
      yield f"{names}: the decoder reads the token table too\n  --config.model.embedding_size=0"
    if self.decoder_positions == "shared" and config.model.position != "learned":
      own = "--config.objectives.mae.decoder_positions=own"
      yield f"objectives.mae.decoder_positions model.position: there is no table to share\n  {own}"
    if self.decoder_relative_position and config.model.relative_position == "none":
      names = "objectives.mae.decoder_relative_position model.relative_position"
      yield f"{names}: the encoder has none\n  --config.objectives.mae.decoder_relative_position=false"

  def flops(self, model: Mapping[str, Any], masked: float) -> dict[str, float]:
    """Returns the FLOP of the head's transform and softmax; see `Objective.flops`."""
    width = model["hidden_size"]
    return {"mae head": masked * (2 * width**2 + 2 * width * model["vocab_size"])}


# The order determines the random keys of the heads: a new objective is added at the end.
_ROWS: tuple[type[Objective], ...] = (
  MaskedLM,
  ReplacedTokenDetection,
  CorrectiveLM,
  AllTokenLM,
  SequenceContrast,
  TokenAlignment,
  MaskedAutoencoder,
)
OBJECTIVES: dict[str, type[Objective]] = {row.name: row for row in _ROWS}


def switched_on(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Objective]:
  """Returns {name: settings} of the objectives whose weight is not 0, from a config or a checkpoint's dict.

  A checkpoint's dict may lack newer objectives and fields, which have defaults, and contain removed fields.
  """

  def fields(settings: type[Objective], group: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: group[field.name] for field in dataclasses.fields(settings) if field.name in group}

  return {
    name: settings(**fields(settings, groups[name]))
    for name, settings in OBJECTIVES.items()
    if name in groups and groups[name]["weight"]
  }


def objective_rules(config: ConfigDict) -> Iterator[str]:
  """Yields each broken rule about objectives: that one is on, that each gets what it reads, and its own."""
  objectives = switched_on(config.objectives.to_dict())
  if not objectives:
    names = " ".join(f"objectives.{name}.weight" for name in OBJECTIVES)
    yield f"{names}: no objective is on; set one of these weights above 0"
  has_masks = config.corruption.kind == "mask"
  for name, objective in objectives.items():
    both = f"objectives.{name}.weight corruption.kind"
    if has_masks and "replaced" in objective.reads:
      yield f"{both}: {name} needs replaced tokens; use kind 'generator' or 'random', or objectives.mlm"
    if not has_masks and "masks" in objective.reads:
      yield f"{both}: {name} needs masks; use corruption.kind 'mask', or objectives.clm with copy=False"
    yield from objective.rules(config)
