"""Faults of meshes, and of processes that train together. Columns as in `mutant_list.py`."""

FAULTS: list[tuple[str, str, list[tuple[str, str, str, str]]]] = [
  (
    "pretrain/mesh/device_order.py",
    "tests/pretrain/mesh/test_device_order.py",
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
      (
        "a lost process is no reason of its own",
        'self._tell({"over": line, "code": PeerError.exit_code})',
        'self._tell({"over": line, "code": 1})',
        "test_a_process_whose_connections_close_ends_the_others_by_name[1]",
      ),
      (
        "a polite stop of one is an error of the others",
        "code if code == STOPPED else PeerError.exit_code",
        "PeerError.exit_code",
        "test_a_process_that_is_stopped_before_the_loop_stops_the_others",
      ),
      (
        "those who are late are those who came",
        "self.name(index) for index in range(self.number) if index not in values",
        "self.name(index) for index in range(self.number) if index in values",
        "test_who_does_not_come_is_named_and_nobody_waits_longer[1]",
      ),
    ],
  ),
  (
    "pretrain/pod/meeting.py",
    "tests/pretrain/pod/test_peers.py",
    [
      (
        "those who are missing are those who came",
        "str(index) for index in range(where.number) if index not in hosts",
        "str(index) for index in range(where.number) if index in hosts",
        "test_missing_processes_are_named_when_the_time_is_over",
      ),
    ],
  ),
]
