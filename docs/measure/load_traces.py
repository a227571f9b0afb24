#!/usr/bin/env python3
"""Loads the traces of a profile with HolisticTraceAnalysis, as its users do, and checks them.

    python3 -m venv hta && hta/bin/pip install HolisticTraceAnalysis==0.5.0
    cargo run -p polyrail-profile --example synthetic -- profile
    hta/bin/python docs/measure/load_traces.py profile

Each rank must be found, under its own number, without an event of less than no time.
"""

import json
import sys
from pathlib import Path

from hta.trace_analysis import TraceAnalysis


def main() -> None:
    profile = Path(sys.argv[1])
    plan = json.loads((profile / "plan.json").read_text())
    expected = {endpoint["rank"] for endpoint in plan["endpoints"]}

    analysis = TraceAnalysis(trace_dir=str(profile / "kineto"))
    found = analysis.t.traces
    assert set(found) == expected, f"ranks {sorted(found)}, expected {sorted(expected)}"
    for rank, frame in sorted(found.items()):
        path = Path(analysis.t.trace_files[rank]).name
        assert path == f"rank_{rank}.pt.trace.json", f"rank {rank} came from {path}"
        names = frame["name"].map(lambda number: analysis.t.symbol_table.sym_table[number])
        transfers = names[names.str.startswith("p2p_cfg")]
        ends = transfers.str.extract(r"_s(\d+)d(\d+)_sz\d+_r\d+$").astype(int)
        assert len(transfers) > 0, f"rank {rank} has no transfers"
        assert ((ends[0] == rank) | (ends[1] == rank)).all(), f"rank {rank} has others' transfers"
        assert (frame["dur"] >= 0).all(), f"rank {rank}: {frame['dur'].min()} us"
        assert (frame["ts"] >= 0).all(), f"rank {rank} has events before the base"
        on_device = frame[frame["stream"] >= 0]
        print(f"rank {rank}: {len(frame)} events, {len(on_device)} on the device, "
              f"shortest {frame['dur'].min():g} us")
    if any(endpoint["kind"] == "gpu" for endpoint in plan["endpoints"]):
        temporal = analysis.get_temporal_breakdown(visualize=False)
        print(temporal.to_string())
    print("HTA loads every rank")


if __name__ == "__main__":
    main()
