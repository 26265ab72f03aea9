"""Whether the official COCO-LM and AMOS code computes what a model of ours does."""

from data.vocabulary import Vocabulary
from pretrain.export import folders
from pretrain.export.official import names as official_names
from pretrain.models.config import EncoderConfig

# Official code hard-codes the first four: fairseq/data/dictionary.py.
IDS = {"cls": 0, "pad": 1, "sep": 2, "unk": 3}


def check_official(
  config: EncoderConfig, vocabulary: Vocabulary, layout: str, params: dict, *, activation: str = "tanh"
) -> None:
  """Refuses what official code of a layout of `folders.OFFICIAL` would compute otherwise, with a ConfigError.

  That is T5 buckets, segments or another LayerNorm epsilon in fairseq, WordPiece, other special ids, and a
  generator or a head that the official classes cannot hold.

  Source: official fairseq/models/cocolm/model.py, amos/model.py, huggingface/cocolm/modeling_cocolm.py.
  """
  reason = _encoder_fault(config, vocabulary, layout) or _head_fault(params, layout, activation)
  if not reason and layout == "fairseq":
    reason = _generator_fault(params)
  if reason:
    folders.refuse(layout, reason)


def _encoder_fault(config: EncoderConfig, vocabulary: Vocabulary, layout: str) -> str:
  ids = {name: getattr(vocabulary.special_ids, name) for name in IDS}
  if config.relative_position == "t5":
    return "its code has relative buckets of its own (model.relative_position='official'), not T5's"
  if vocabulary.kind != "sentencepiece":
    return f"its tokenizer needs sp.model and dict.txt, and this vocabulary is {vocabulary.kind}"
  if ids != IDS:
    return f"it fixes the ids {IDS}, and this vocabulary has {ids}"
  if config.num_segments and layout == "fairseq":
    return f"it has no segment embeddings, and this model has {config.num_segments}"
  if config.layer_norm_eps != 1e-5 and layout == "fairseq":
    return f"its LayerNorm epsilon is 1e-5, and this model's {config.layer_norm_eps}"
  return ""


def _head_fault(params: dict, layout: str, activation: str) -> str:
  heads = params.get("heads", {})
  if "dense" in heads.get("rtd", {}):
    return "its RTD head is one linear layer, and this model has a dense layer before it"
  # In fairseq it is a setting.
  if "classification" in heads and layout != "fairseq":
    return folders.activation_fault("the port", "official", activation)
  return ""


def _generator_fault(params: dict) -> str:
  """What COCOLM_Model's auxiliary network cannot be: it has the encoder's widths and token table."""
  generator = params.get("generator")
  if not generator:
    return ""
  if "trunk" not in generator:
    return f"its generator is one network, and this model has {len(generator)}"
  if _widths(generator) != _widths(params["encoder"]):
    return "its generator has the encoder's width and heads, and this model's has others"
  if official_names.sharing_of(params) == "none":
    return (
      "its generator reads the encoder's token table, and this model's has one of its own "
      "(generator.share_embeddings='none' or generator.frozen)"
    )
  return ""


def _widths(network: dict) -> tuple[tuple[int, ...], ...]:
  layers = network["trunk"]["layers"]
  return tuple(
    kernel.shape[1:] for kernel in (layers["attention"]["query"]["kernel"], layers["up"]["kernel"])
  )
