"""Faults of meshes, and of processes that train together. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/device_order.py",
    "tests/pretrain/test_device_order.py",
    [
      (
        "neighbours along fsdp lie on different slices",
        "transpose(0, 2, 1, 3, 4)",
        "transpose(0, 2, 3, 1, 4)",
        "test_fsdp_goes_across_slices_where_that_is_asked_for",
      ),
      (
        "a host reads the rows of its first device alone",
        "if any(device.process_index == process for device in group)",
        "if group[0].process_index == process",
        "test_a_process_reads_exactly_the_rows_of_its_devices[sizes4-v5e]",
      ),
    ],
  ),
  (
    "pretrain/pod/peers.py",
    "tests/pretrain/pod/test_peers.py",
    [
      (
        "each stops where the slowest is",
        "max(self._ticks.values()) + 1",
        "min(self._ticks.values()) + 1",
        "test_all_stop_at_the_same_point_however_far_each_is[0]",
      ),
    ],
  ),
]
