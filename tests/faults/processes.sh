# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A small job on $nodes nodes n0, n1, ... of this machine ($node_prefix, if it is set, stands for that "n"), and the processes of its run,
# which have HSPMD_CONTACTS=$folder/contacts in their environment and write to $folder/o.

# In the current folder. No device could hold all of the state: what is lost with a worker exists only in copies.
prepare() {
	"$top/contrib/examples/make-corpus" -o corpus.bin 200000
	jq '.n_layer = 3 | .n_embd = 64' "$top/contrib/examples/gpt2-tiny.json" >model.json
	jq --arg ckpt "$folder/ckpt" --argjson nodes "$nodes" '.data.train = ["corpus.bin"] | .model = "model.json" | .steps = 1000000
		| .seq_len = 64 | .global_batch = 12 | .optimizer.lr = 3e-4
		| .optimizer.schedule = "constant" | .elastic = { min_nodes: 1, max_nodes: $nodes, policy: "default" }
		| .checkpoint = { local: $ckpt, every_s: 2, replicas: 1, keep: 2 }' "$top/contrib/examples/job.json" >job.json
	jq -n --argjson nodes "$nodes" '{ format: "hspmd-cluster-1",
		device_types: { core: { kind: "cpu", memory_bytes: 4000000, gbytes_per_s: 10, peak_tflops: { fp32: 0.05 } } },
		nodes: [ { name: "n[0-\($nodes - 1)]", devices: [ { type: "core", count: 1 } ] } ],
		links: [ { scope: "cluster", alpha_s: 1e-5, gbytes_per_s: 1 } ] }' >cluster.json
	jq -n --argjson nodes "$nodes" '{ format: "hspmd-plan-1", global_batch: 12, micro_batch: 1, seq_len: 64, schedule: "1f1b", zero_stage: 0,
		pipelines: [ { micro_batches: 12,
		stages: [ range($nodes) as $i | { layers: [(5 * $i / $nodes | floor), (5 * ($i + 1) / $nodes | floor)],
			devices: ["n\($i):0"] } ] } ] }' >plan.json
	((nodes <= 5)) || { echo "--nodes: at most 5 here"; exit 2; }
}

# In one go: while other tests run there are many processes of that name.
processes() {
	local -a pids files
	[[ -n ${folder-} ]] || return 0
	mapfile -t pids < <(pgrep -x 'hspmd|lt-hspmd')
	((${#pids[@]} > 0)) || return 0
	files=("${pids[@]/#//proc/}")
	{ grep -lszF "HSPMD_CONTACTS=$folder/" "${files[@]/%//environ}" || true; } | cut -d / -f 3
}

agent() { # NODE-NUMBER
	local pid
	local -a words
	for pid in $(processes); do
		words=()
		mapfile -d '' -t words 2>/dev/null <"/proc/$pid/cmdline" || true
		[[ ! "${words[*]} " =~ agent\ .*--node\ ${node_prefix-n}$1\  ]] || echo "$pid"
	done
}

workers() { # NODE-NUMBER
	local pid
	for pid in $(agent "$1"); do
		pgrep -P "$pid"
	done
}

# Kills all processes with the folder's name in their environment. If there were any, until none has been there for half a second: one that
# they are just starting has no environment yet, and would wait for its dead controller for minutes.
end_processes() {
	local deadline=$((SECONDS + 15)) none=0 looks=1 pid found
	for (( ; ; )); do
		found=$(processes)
		none=$((${#found} ? 0 : none + 1))
		((none < looks)) || return 0
		looks=5
		for pid in $found; do
			kill -KILL "$pid" 2>/dev/null || true
		done
		((SECONDS < deadline)) || { echo "processes are left: $found"; return 1; }
		sleep 0.1
	done
}

# Prints what the memory of emulated nodes still holds of runs whose output is in the folder.
remove_memory() {
	local name
	while read -r name; do
		[[ ! $name =~ ^[0-9a-f]{12}$ ]] || rm -rf /dev/shm/hspmd-*-"$name"
	done < <(find "$folder" -maxdepth 3 -name run.json -exec jq -r '.run[:12]' {} + 2>/dev/null)
}
