"""Sound small files of every kind that is read from others, how they are read, and how they are damaged."""

import argparse
import dataclasses
import json
import pathlib
import random
import tempfile
import zipfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from safetensors.numpy import save_file

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c")
_NUMBERS = (b"-1", b"0", b"1", b"2147483648", b"18446744073709551615", b"1e999", b"9" * 40, b"null", b'"x"')


class Parser(NamedTuple):
  """One kind of file."""

  file: str  # its name
  write: Callable[[pathlib.Path], None]  # makes a folder with a sound file
  read: Callable[[pathlib.Path], object]  # reads the folder
  mutate: Callable[[random.Random, bytes], bytes]


def _bytes(rng: random.Random, content: bytes) -> bytes:
  """A few changes of any bytes."""
  changed = bytearray(content)
  for _ in range(rng.choice((1, 1, 1, 2, 4))):
    at, length = rng.randrange(len(changed) + 1), rng.choice((1, 1, 2, 4, 8, 40))
    kind = rng.randrange(6)
    if kind == 0:
      changed[at : at + length] = rng.randbytes(min(length, len(changed) - at))
    elif kind == 1:
      del changed[at:]
    elif kind == 2:
      del changed[at : at + length]
    elif kind == 3:
      changed[at:at] = changed[max(0, at - length) : at]
    elif kind == 4:
      changed[at:at] = rng.randbytes(length)
    elif at < len(changed):
      changed[at] ^= 1 << rng.randrange(8)
  return bytes(changed)


def _text(rng: random.Random, content: bytes) -> bytes:
  """Changes of bytes, or of a number or a name in JSON."""
  if rng.random() < 0.5:
    return _bytes(rng, content)
  marks = [at for at in range(len(content)) if content[at : at + 1].isdigit()] or [0]
  start = rng.choice(marks)
  end = start + 1
  while content[end : end + 1].isdigit():
    end += 1
  return content[:start] + rng.choice(_NUMBERS) + content[end:]


def _safetensors(rng: random.Random, content: bytes) -> bytes:
  """Any bytes, or the header alone with its length put right."""
  if rng.random() < 0.3:
    return _bytes(rng, content)
  end = 8 + int.from_bytes(content[:8], "little")
  header = _text(rng, content[8:end])
  return len(header).to_bytes(8, "little") + header + content[end:]


def _torch(rng: random.Random, content: bytes) -> bytes:
  """Any bytes, or those of the pickle within the archive, whose checksums are then right again."""
  if rng.random() < 0.3:
    return _bytes(rng, content)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "file"
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
      entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
      for name, entry in entries.items():
        archive.writestr(name, _bytes(rng, entry) if name.endswith("data.pkl") else entry)
    return path.read_bytes()


def _write_safetensors(folder: pathlib.Path) -> None:
  tensors = {"a.weight": np.ones((2, 3), np.float32), "b": np.ones(2, np.float16), "ids": np.arange(3)}
  save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _write_bin(folder: pathlib.Path) -> None:
  import torch

  table = torch.ones(2, 3)
  torch.save(
    {"a": table, "tied": table, "b": torch.ones(4, dtype=torch.bfloat16)}, folder / "pytorch_model.bin"
  )


def _write_fairseq(folder: pathlib.Path) -> None:
  import torch

  settings = argparse.Namespace(encoder_attention_heads=2, rel_pos=1, max_rel_pos=128, arch="cocolm")
  content = {"args": settings, "model": {"a": torch.ones(2, 3)}, "optimizer_history": [{"lr": 0.5}]}
  torch.save(content | {"extra_state": {"epoch": 3}, "cfg": None}, folder / "model.pt")


def _write_vocab_txt(folder: pathlib.Path) -> None:
  (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
  (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')


def _write_sp_model(folder: pathlib.Path) -> None:
  import sentencepiece

  lines = ("the people make time", "a man and a map", "no one knows the way home")
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_prefix=str(folder / "sp"),
    vocab_size=40,
    model_type="bpe",
    bos_id=0,
    pad_id=1,
    eos_id=2,
    unk_id=3,
    bos_piece="[CLS]",
    pad_piece="[PAD]",
    eos_piece="[SEP]",
    unk_piece="[UNK]",
    control_symbols=["[MASK]"],
    minloglevel=2,
  )
  (folder / "sp.vocab").unlink()


def _write_dictionary(folder: pathlib.Path) -> None:
  _write_sp_model(folder)
  (folder / "dict.txt").write_text("▁the 12\ne 9\n[MASK] 1 #fairseq:overwrite\n▁ 3\n", encoding="utf-8")


def _write_tokenizer_json(folder: pathlib.Path) -> None:
  from tokenizers import Tokenizer, models, processors

  from data.vocabulary.tokenizer_files import configure_wordpiece

  ids = {piece: number for number, piece in enumerate(PIECES)}
  tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
  configure_wordpiece(tokenizer, cased=False)
  tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
  tokenizer.save(str(folder / "tokenizer.json"))


_PORT = {"model_type": "cocolm", "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2}
_PORT |= {
  "num_attention_heads": 2,
  "intermediate_size": 12,
  "max_position_embeddings": 6,
  "hidden_act": "gelu",
}
_PORT |= {"rel_pos_bins": 4, "max_rel_pos": 9, "layer_norm_eps": 1e-5, "type_vocab_size": 0}
_STOCK = {"model_type": "mpnet", "vocab_size": 13, "hidden_size": 8, "num_hidden_layers": 2}
_STOCK |= {"num_attention_heads": 2, "intermediate_size": 12, "max_position_embeddings": 8, "pad_token_id": 1}


def _write_config(folder: pathlib.Path) -> None:
  (folder / "config.json").write_text(json.dumps(_PORT))


def _write_stock_config(folder: pathlib.Path) -> None:
  (folder / "config.json").write_text(json.dumps(_STOCK))


def _write_modern_config(folder: pathlib.Path) -> None:
  rope = {
    kind: {"rope_type": "default", "rope_theta": 9.0} for kind in ("full_attention", "sliding_attention")
  }
  fields = {"model_type": "modernbert", "rope_parameters": rope, "layer_types": [*rope], "local_attention": 4}
  fields |= {"norm_eps": 1e-5, "hidden_activation": "gelu", "local_rope_theta": -1, "mlp_dropout": 0.1}
  (folder / "config.json").write_text(json.dumps(_STOCK | fields))


def _write_index(folder: pathlib.Path) -> None:
  shards = {"a.weight": "model-1.safetensors", "b": "model-2.safetensors"}
  for name, shard in shards.items():
    save_file({name: np.ones((2, 3), np.float32)}, folder / shard)
  index = {"metadata": {"total_size": 48}, "weight_map": shards}
  (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_extra(folder: pathlib.Path) -> None:
  paths = ("heads/rtd/kernel", "heads/rtd/bias", "generator/trunk/up/kernel")
  save_file({path: np.ones((2, 3), np.float32) for path in paths}, folder / "extra.safetensors")


def _write_own_config(folder: pathlib.Path) -> None:
  from pretrain.models.layers import EncoderConfig

  model = dataclasses.asdict(EncoderConfig(13, 8, 2, 2, 12, 6))
  (folder / "config.json").write_text(json.dumps({"model_type": "text_encoder_pretraining", "model": model}))


def _write_vocabulary(folder: pathlib.Path) -> None:
  from data import vocabulary

  (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
  vocabulary.write_description(folder, kind="wordpiece", cased=False)


def _write_manifest(folder: pathlib.Path) -> None:
  from data import manifest

  special_ids = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
  info = manifest.VocabularyInfo("wordpiece", False, 8, "d" * 64, special_ids)
  split = manifest.Split(6, 90, (manifest.Shard("train-00000.arrayrecord", 6, 180, "e" * 64),))
  made = manifest.Manifest(
    {"seed": 0}, "f" * 64, info, 16, "none", "uint16", 7, {"train": split, "heldout": split}, {}, {}
  )
  manifest.write(folder, made)


def _read_state(folder: pathlib.Path) -> object:
  from pretrain.export.weight_files import read_state

  return read_state(folder)


def _read_tokenizer(folder: pathlib.Path) -> object:
  from pretrain.export.tokenizer.convert import read_tokenizer

  with tempfile.TemporaryDirectory() as output:
    return read_tokenizer(folder, pathlib.Path(output) / "vocabulary").encode("the people ab c")


def _read_port_config(folder: pathlib.Path) -> object:
  from pretrain.export import official as official_config
  from pretrain.export.weight_files import read_json

  config, blank = read_json(folder / "config.json"), lambda *shape: np.zeros(shape, np.float32)
  layers = {"attention": {"query": {"kernel": blank(2, 8, 2, 4)}}, "up": {"kernel": blank(2, 8, 12)}}
  embeddings = {"token": {"embedding": blank(13, 8)}, "position": {"embedding": blank(6, 8)}}
  trunk = {"layers": layers, "relative_position": {"embedding": blank(4, 2)}}
  official_config.find_num_heads(config, "num_attention_heads", {}, 2)
  return official_config.port_fields(config, {"encoder": {"embeddings": embeddings, "trunk": trunk}})


def _read_stock_config(folder: pathlib.Path) -> object:
  from pretrain.export.stock.config import encoder_fields, repaired
  from pretrain.export.weight_files import read_json

  return encoder_fields(repaired(read_json(folder / "config.json"))[0])


def _read_extra(folder: pathlib.Path) -> object:
  from pretrain.export import recognise

  return recognise.merge({"encoder": {"embeddings": np.ones(2)}}, recognise.read_extra(folder))


def _read_own_config(folder: pathlib.Path) -> object:
  from pretrain.export.recognise import own_fields
  from pretrain.export.weight_files import read_json

  return own_fields(read_json(folder / "config.json"))


def _read_vocabulary(folder: pathlib.Path) -> object:
  from data import vocabulary

  return vocabulary.load(folder).encode("ab c")


def _read_manifest(folder: pathlib.Path) -> object:
  from data import manifest

  return manifest.read(folder)


PARSERS = {
  "safetensors": Parser("model.safetensors", _write_safetensors, _read_state, _safetensors),
  "bin": Parser("pytorch_model.bin", _write_bin, _read_state, _torch),
  "fairseq": Parser("model.pt", _write_fairseq, _read_state, _torch),
  "vocab_txt": Parser("vocab.txt", _write_vocab_txt, _read_tokenizer, _bytes),
  "dict_txt": Parser("dict.txt", _write_dictionary, _read_tokenizer, _bytes),
  "sp_model": Parser("sp.model", _write_sp_model, _read_tokenizer, _bytes),
  "tokenizer_json": Parser("tokenizer.json", _write_tokenizer_json, _read_tokenizer, _text),
  "config_json": Parser("config.json", _write_config, _read_port_config, _text),
  "modern_config_json": Parser("config.json", _write_modern_config, _read_stock_config, _text),
  "stock_config_json": Parser("config.json", _write_stock_config, _read_stock_config, _text),
  "own_config_json": Parser("config.json", _write_own_config, _read_own_config, _text),
  "index_json": Parser("model.safetensors.index.json", _write_index, _read_state, _text),
  "extra_safetensors": Parser("extra.safetensors", _write_extra, _read_extra, _safetensors),
  "vocabulary_json": Parser("vocabulary.json", _write_vocabulary, _read_vocabulary, _text),
  "manifest_json": Parser("manifest.json", _write_manifest, _read_manifest, _text),
}
