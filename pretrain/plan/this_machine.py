"""Describes this machine as a chip: memory, and speeds that are measured within a second."""

import time

import jax
import jax.numpy as jnp
import psutil

from pretrain.mesh.chips import Chip
from pretrain.plan.dry_run import matmul_flops


def cpu_chip(devices: int) -> Chip:
  """Returns one device's share of this machine's memory and speed."""
  copied = copy_bandwidth() / devices
  return Chip(
    "cpu",
    "cpu",
    hbm_bytes=psutil.virtual_memory().total / devices,
    bandwidth=copied,
    link_bandwidth=copied,
    platform="cpu",
    product_share=1.0,
    bandwidth_share=1.0,
    wide_share=1.0,
    measured_flops=matmul_flops() / devices,
  )


def copy_bandwidth(size: int = 1 << 26, repeats: int = 4) -> float:
  """Measures bytes/s read and written by an elementwise sum over `size` bytes on the default device."""
  x = jnp.ones(size // 4, jnp.float32)
  add = jax.jit(lambda x: x + 1, donate_argnums=0)
  x = add(x).block_until_ready()
  started = time.perf_counter()
  for _ in range(repeats):
    x = add(x)
  x.block_until_ready()
  return repeats * 2 * size / (time.perf_counter() - started)
