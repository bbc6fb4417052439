# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Instead of GPT-2 by a given plan, a drawn model of contrib/examples/models by plans of the solver: nodes of two unlike devices, of which
# no node can hold all of the state, and one node fewer can. Sourced by tests/faults/local.sh after processes.sh.

# write_devices BYTES FILE
write_devices() {
	jq -n --argjson nodes "$nodes" --argjson bytes "$1" '{ format: "hspmd-cluster-1", device_types: {
			fast: { kind: "cpu", memory_bytes: $bytes, gbytes_per_s: 10, peak_tflops: { fp32: 0.05 } },
			slow: { kind: "cpu", memory_bytes: ($bytes * 3 / 4 | floor), gbytes_per_s: 10, peak_tflops: { fp32: 0.02 } } },
		nodes: [ { name: "n[0-\($nodes - 1)]", devices: [ { type: "fast", count: 1 }, { type: "slow", count: 1 } ] } ],
		links: [ { scope: "node", alpha_s: 1e-6, gbytes_per_s: 4 }, { scope: "cluster", alpha_s: 1e-5, gbytes_per_s: 1 } ] }' >"$2"
}

prepare() {
	local -a configs=("$top"/contrib/examples/models/*/config.json)
	local bytes
	draw "${#configs[@]}"
	local config=${configs[drawn]}
	"$top/contrib/examples/make-corpus" -o corpus.bin 200000
	draw 3
	# Few steps are so long that one is waited for; some batches do not divide by the devices.
	jq --arg model "$config" --arg ckpt "$folder/ckpt" --argjson nodes "$nodes" --argjson batch $((7 + drawn)) '.model = $model
		| .data.train = ["corpus.bin"] | .steps = 1000000 | .seq_len = 32 | .global_batch = $batch | .optimizer.lr = 3e-4
		| .optimizer.schedule = "constant" | .elastic = { min_nodes: 1, max_nodes: $nodes, policy: "default" }
		| .checkpoint = { local: $ckpt, every_s: 2, replicas: 1, keep: 2 }' "${config%/*}/job.json" >job.json
	write_devices 4000000000 large.json
	bytes=$(hspmd plan --job job.json --cluster large.json --max-devices 1 --json | jq '.predicted.memory_bytes | add')
	draw 3
	bytes=$((bytes * (4 + drawn) / 10))
	while write_devices "$bytes" cluster.json &&
		! hspmd plan --job job.json --cluster cluster.json --max-nodes "$((nodes - 1))" --json >least.json 2>least.log; do
		bytes=$((bytes * 11 / 10))
		((bytes > 0 && bytes < 4000000000)) || { echo "no plan fits whatever the memory:"; cat least.log; exit 1; }
	done
	hspmd plan --job job.json --cluster cluster.json --json >plan.json || exit 1
	echo "  $(jq -r .model_type "$config") in $bytes bytes a device: $(jq -c '[.zero_stage, .schedule, (.pipelines[] |
		[.micro_batches, (.stages[] | (.layers | map(tostring) | join("-")) + "x\(.devices | length)")])]' plan.json)"
}

# Where a token is near two experts, rounding decides which one it gets, so losses under other plans are not near to each other.
routed() {
	jq -e '.num_local_experts // .n_routed_experts // .num_experts' "$(jq -r .model job.json)" >/dev/null
}
