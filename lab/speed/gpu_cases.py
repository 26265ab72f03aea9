"""The cases of `benchmarks.gpu_day`, the most valuable first. Another variant is one more row here."""

import dataclasses
from collections.abc import Iterator

SHAPES = {"taco_base": "64x256"}  # rows x tokens of a recipe's speed; others: USUAL
USUAL = "32x512"
LARGE = {"taco_base": "256x256", "coco_lm_base": "96x512", "amos_base": "96x512"}
USUAL_LARGE = "128x512"
RECIPES = ("roberta_base", "coco_lm_base", "amos_base", "electra_base", "taco_base")
_OWN_PRODUCTS = "--xla_gpu_enable_triton_gemm=true"  # XLA's, tried against the library's
_NO_GRAPHS = "--xla_gpu_enable_command_buffer="
_ALL_GRAPHS = (
  "--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,COLLECTIVES"
  " --xla_gpu_graph_min_graph_size=1"
)
# name: (recipe, rows x tokens, XLA_FLAGS, changes of fields)
_VARIANTS = {
  "all_graphs": ("roberta_base", USUAL, _ALL_GRAPHS, ()),
  "no_graphs": ("roberta_base", USUAL, _NO_GRAPHS, ()),
  "own_products": ("roberta_base", USUAL, _OWN_PRODUCTS, ()),
  "deterministic": ("roberta_base", USUAL, "--xla_gpu_deterministic_ops=true", ()),
  "remat_none": ("roberta_base", USUAL, "", ("model.remat=none",)),
  "own_products_taco": ("taco_base", SHAPES["taco_base"], _OWN_PRODUCTS, ()),
  "all_graphs_taco": ("taco_base", SHAPES["taco_base"], _ALL_GRAPHS, ()),
  "all_graphs_large": ("roberta_base", USUAL_LARGE, _ALL_GRAPHS, ()),
}


@dataclasses.dataclass(frozen=True)
class Case:
  """A child program: a function of `benchmarks.gpu_case`, and what it works on."""

  name: str
  kind: str
  recipe: str = ""
  shape: str = USUAL
  changes: tuple[str, ...] = ()  # 'field=value'
  flags: str = ""  # XLA_FLAGS
  peer: str = ""  # a kind of `benchmarks.peers.server`
  is_check: bool = False  # the exit code depends on its 'ok'
  has_profile: bool = False
  platforms: str = "cuda,cpu"  # JAX_PLATFORMS: an error without a GPU
  is_tiny: bool = False  # a rehearsal


def table() -> list[Case]:
  """All cases in order of value."""
  start = [Case("ceilings", "ceilings"), *_checks(), *_ours()]
  return [*start, *_peers(1), *_variants(), *_large(), *_others(), *_peers(4), *_peers(2)]


def rehearsed(case: Case) -> Case:
  """The case at a size that two CPU cores finish in seconds."""
  rows = {"32": "2", "64": "4", "96": "6", "128": "8", "256": "16"}
  first = case.shape.split("x")[0]
  recipe, tiny = case.recipe.replace("_base", "_tiny"), ("model.num_layers=2", "model.vocab_size=512")
  changes = (*case.changes, *tiny) if case.kind in ("step", "peer") else case.changes
  shape = f"{rows[first]}x32"
  return dataclasses.replace(case, recipe=recipe, shape=shape, changes=changes, platforms="cpu", is_tiny=True)


def _checks() -> Iterator[Case]:
  # First what takes longest from its start to its last line: it trains a base recipe three times.
  yield Case("real_run", "real_run", "roberta_base", USUAL, is_check=True)
  yield Case("attention_kernels", "attention_kernels", is_check=True)
  yield Case("kernels", "kernels", is_check=True)
  yield Case("goldens", "goldens", is_check=True)
  for recipe in ("roberta_tiny", "coco_lm_tiny", "amos_tiny", "taco_tiny", "electra_tiny"):
    options = {"shape": "32x64", "is_check": True}
    yield Case(f"twenty_steps_{recipe}", "twenty_steps", recipe, **options)
  changes = ("model.dropout=0.1", "model.attention_dropout=0.1")
  yield Case("resume", "resume", "roberta_tiny", "32x64", changes, is_check=True)


def _ours() -> Iterator[Case]:
  for recipe in RECIPES:
    yield Case(recipe, "step", recipe, SHAPES.get(recipe, USUAL), has_profile=True)


def _large() -> Iterator[Case]:
  for recipe in RECIPES:
    yield Case(f"{recipe}_large", "step", recipe, LARGE.get(recipe, USUAL_LARGE))


def _peers(times: int) -> Iterator[Case]:
  """The peers at our shape, or at so many times the rows: one of them is their best batch."""
  for recipe in RECIPES:
    rows, _, length = SHAPES.get(recipe, USUAL).partition("x")
    name = f"peer_{recipe}" + (f"_x{times}" if times > 1 else "")
    yield Case(name, "peer", recipe, f"{times * int(rows)}x{length}", peer="torch_compiled")
  if times == 1:
    modern = ("corruption.mask_rate=0.3",)
    yield Case("peer_hugging_face", "peer", "roberta_base", peer="hugging_face_compiled")
    yield Case("peer_modern_bert", "peer", "roberta_base", USUAL, modern, peer="modern_bert_compiled")


def _variants() -> Iterator[Case]:
  for name, (recipe, shape, flags, changes) in _VARIANTS.items():
    yield Case(f"variant_{name}", "step", recipe, shape, changes, flags)


def _others() -> Iterator[Case]:
  yield Case("finetune", "finetune", shape="32x128")
  yield Case("embed", "embed", "roberta_base", "256x128")
