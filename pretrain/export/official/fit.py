"""Checks whether the official COCO-LM and AMOS code computes the same as a model of ours."""

from data.vocabulary import Vocabulary
from pretrain.export import folders
from pretrain.export.official import names as official_names
from pretrain.export.stock.choose import switch_faults
from pretrain.models.layers import EncoderConfig

# Fixed in the official code: fairseq/data/dictionary.py.
IDS = {"cls": 0, "pad": 1, "sep": 2, "unk": 3}


def check_official(
  config: EncoderConfig, vocabulary: Vocabulary, layout: str, params: dict, *, activation: str = "tanh"
) -> None:
  """Raises ConfigError if the official code of a layout in `folders.OFFICIAL` would compute something else.

  Unsupported are T5 buckets, WordPiece, other special ids, and some heads; in fairseq also segments, another
  LayerNorm epsilon, and generators unlike the encoder.

  Source: official fairseq/models/cocolm/model.py, amos/model.py, huggingface/cocolm/modeling_cocolm.py.
  """
  reason = _encoder_fault(config, vocabulary, layout) or _head_fault(params, layout, activation)
  if not reason and layout == "fairseq":
    reason = _generator_fault(params)
  if reason:
    folders.refuse(layout, reason)


def _encoder_fault(config: EncoderConfig, vocabulary: Vocabulary, layout: str) -> str:
  if faults := switch_faults(layout, config):
    return faults[0]
  ids = {name: getattr(vocabulary.special_ids, name) for name in IDS}
  if config.relative_position == "t5":
    return "it supports only its own relative buckets (model.relative_position='official'), not T5's"
  if vocabulary.kind != "sentencepiece":
    return f"its tokenizer needs sp.model and dict.txt, and this vocabulary is {vocabulary.kind}"
  if ids != IDS:
    return f"its special ids are fixed to {IDS}, and this vocabulary has {ids}"
  if config.num_segments and layout == "fairseq":
    return f"it has no segment embeddings, and this model has {config.num_segments}"
  if config.layer_norm_eps != 1e-5 and layout == "fairseq":
    return f"its LayerNorm epsilon is 1e-5, and this model's {config.layer_norm_eps}"
  return ""


def _head_fault(params: dict, layout: str, activation: str) -> str:
  heads = params.get("heads", {})
  if "dense" in heads.get("rtd", {}):
    return "its RTD head is one linear layer, and this model has a dense layer before it"
  # In fairseq the activation is a setting.
  if "classification" in heads and layout != "fairseq":
    return folders.activation_fault("the port", "official", activation)
  return ""


def _generator_fault(params: dict) -> str:
  """Explains why COCOLM_Model cannot represent the generator; '' if it can."""
  generator = params.get("generator")
  if not generator:
    return ""
  if "trunk" not in generator:
    return f"its generator is one network, and this model has {len(generator)}"
  if _widths(generator) != _widths(params["encoder"]):
    return "its generator has the encoder's width and heads, but this model's generator has others"
  if official_names.sharing_of(params) == "none":
    return (
      "its generator shares the encoder's token table, but this model's generator has its own "
      "(generator.share_embeddings='none' or 'gdes', or generator.frozen)"
    )
  return ""


def _widths(network: dict) -> tuple[tuple[int, ...], ...]:
  layers = network["trunk"]["layers"]
  return tuple(
    kernel.shape[1:] for kernel in (layers["attention"]["query"]["kernel"], layers["up"]["kernel"])
  )
