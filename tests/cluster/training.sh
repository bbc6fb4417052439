# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Training jobs in tests: make them small, submit them, disturb them, and compare them with the same job undisturbed.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

hspmd run --help >/dev/null 2>&1 || {
	echo "skip ${0##*/}: this build has no 'hspmd run'"
	exit 77
}

# prepare_example [JQ-FILTER]: puts the installed example job.json and all files that it names into this test's folder; the filter changes
# its settings.
prepare_example() {
	local corpus=$HSPMD_MINI/jobs/corpus.bin
	[[ -s $corpus ]] || "$top/contrib/examples/make-corpus" -o "$corpus" 1000000
	cp "$top"/contrib/examples/*.json "$top/contrib/examples/train.sbatch" .
	jq --arg corpus "$corpus" --arg local "$HSPMD_MINI/tmp/ckpt-\$JOB" \
		'.data.train = [$corpus] | .checkpoint.local = $local | .checkpoint.every_s = 2' "$top/contrib/examples/job.json" |
		jq "${1-.}" >job.json
	mkdir -p shared
}

# prepare_job [JQ-FILTER]: the same with a small model and slowed steps. No test waits for a number of steps, and the job must not end
# before its test does: a step takes at least half a second on any machine until the_job_is_done lifts this.
prepare_job() {
	prepare_example ".seq_len = 64 | .global_batch = 8 | .steps = 200 | .optimizer.lr = 3e-4 | .optimizer.schedule = \"constant\" | ${1-.}"
	make_small gpt2-tiny.json '.n_layer = 3 | .n_embd = 64'
	make_small llama-tiny.json '.num_hidden_layers = 3 | .hidden_size = 64 | .intermediate_size = 172'
	export HSPMD_TEST_STEP_S=$WORK/pace
	echo 0.5 >"$HSPMD_TEST_STEP_S"
}

make_small() { # MODEL FILTER
	jq "$2" "$1" >small.json && mv small.json "$1"
}

# prepare_endless_job [JQ-FILTER]: a job that ends_as_undisturbed ends, however many steps it has made by then.
prepare_endless_job() {
	prepare_job "${1-.} | .steps = 1000000"
}

# plan_all_on_each: writes plan.json, in which each of four nodes holds all of the state, so that nothing is lost with three of them.
plan_all_on_each() {
	jq '{ format: "hspmd-plan-1", global_batch, micro_batch: 1, seq_len, schedule: "1f1b", zero_stage: 0, pipelines: [ range(4) as $i
		| { micro_batches: (.global_batch / 4), stages: [ { layers: [0, 5], devices: ["n\($i):0"] } ] } ] }' job.json >plan.json
}

ends_as_undisturbed() {
	scancel "$job"
	wait_for 120 "job $job to end" job_ended "$job"
	as_undisturbed "$output/metrics.jsonl"
	steps_are_in_order
}

# start_training_cluster [OPTION...]: nodes with one processor each, so that a worker has one thread.
start_training_cluster() {
	start_cluster_with_plugin --cpus 1 "$@"
}

# submit [SBATCH-OPTION...]: sets $job and $output; returns when the job makes steps.
submit() {
	submit_only "$@"
	wait_for 120 "job $job to make steps" at_step 3
}

submit_only() {
	job=$(sbatch --parsable --hspmd=job.json --output=job-%j.log "$@" train.sbatch)
	output=$WORK/hspmd-$job
}

# lines FILTER: applies a jq filter to each line of the metrics; skips a line that is half written.
lines() {
	[[ -f $output/metrics.jsonl ]] || return 0
	jq -rR "fromjson? | objects | $1" "$output/metrics.jsonl"
}

last_step() {
	steps_of "$output/metrics.jsonl" | sed -n '$s/ .*//p'
}

at_step() { # STEP
	local step
	still_running || return 1
	step=$(last_step)
	[[ -n $step ]] && ((step >= $1))
}

# A job that has ended will never reach the step: fail. Waits look at files ten times as fast as slurmctld answers: it is asked every fifth
# time.
polls=0
still_running() {
	((polls++ % 5 == 0)) || return 0
	! job_ended "$job" || { note "job $job has ended"; exit 1; }
}

steps_on() { # NODES FROM-STEP: the job has made a step on that many nodes, at FROM-STEP or later
	still_running
	[[ -n $(steps_of "$output/metrics.jsonl" | awk -v nodes="$1" -v from="$2" '$2 == nodes && $1 >= from') ]]
}

# trains_on NODES: waits until the job makes steps on that many nodes, and a few more steps.
trains_on() {
	local from
	from=$(last_step)
	wait_for 120 "steps on $1 nodes" steps_on "$1" "$((from + 1))"
	wait_for 120 "some steps on $1 nodes" at_step $(($(last_step) + 3))
}

# trains_again: waits until the job makes steps after it was requeued.
trains_again() {
	wait_for 120 "its second life" has_resumed
	trains_on "$(job_nodes "$job" | wc -w)"
}

has_resumed() {
	still_running
	[[ $(resizes_of "$output/metrics.jsonl" requeue) -gt 0 ]]
}

# the_job_is_done: lifts the limit on speed; then the job succeeds, every step is there, and the losses are those of the undisturbed run.
the_job_is_done() {
	rm -f "${HSPMD_TEST_STEP_S-}"
	undisturbed "$(jq .steps job.json)"
	wait_for 300 "job $job to end" job_ended "$job"
	job_is "$job" COMPLETED
	"$top/tests/compare-losses" "$output/metrics.jsonl" undisturbed.jsonl
	explained "$output/metrics.jsonl"
	none "generations that began from nothing" "$(lines 'select(.state? == "init") | .generation')"
	steps_are_in_order
}

# Within a generation each step is reported once, in order.
steps_are_in_order() {
	none "steps out of order" "$(lines 'select(has("loss")) | "\(.generation) \(.step)"' |
		awk '$1 < g || ($1 == g && $2 != s + 1) { print } { g = $1; s = $2 }' | tail -n +2)"
}

resizes() { # prints "CAUSE NODES" of every resize
	lines 'select(.event == "resize") | "\(.cause) \(.nodes)"'
}

status_of() { # FIELD of what `hspmd status` says
	hspmd status "$job" --json | jq -r "$1"
}

# squeue and `hspmd status` name the same nodes.
all_agree() {
	wait_for 60 "squeue and hspmd status to name the same nodes" same_nodes || {
		note "squeue: $(job_nodes "$job"); hspmd status: $(status_of .nodes)"
		return 1
	}
}

same_nodes() {
	[[ $(scontrol show hostnames "$(status_of .nodes)" | sort | paste -sd ' ') == \
		"$(job_nodes "$job" | tr ' ' '\n' | sed '/^$/d' | sort | paste -sd ' ')" ]]
}

# Nodes that leave without notice may hold the only copy of some state: then the job continues from a checkpoint.
has_checkpoint() {
	wait_for 120 "a checkpoint" checkpoint_is_there
}

checkpoint_is_there() {
	still_running
	[[ $(status_of '.checkpoint.step // 0') -gt 0 ]]
}

worker_pids() { # NODE: of this job's workers there
	local pid
	for pid in $(pgrep -x hspmd; pgrep -x lt-hspmd); do
		# Other clusters may have a job with this number, too.
		! { grep -qzxF "SLURM_CONF=$SLURM_CONF" "/proc/$pid/environ" && grep -qzxF "SLURM_JOB_ID=$job" "/proc/$pid/environ" &&
			grep -qzxF "SLURMD_NODENAME=$1" "/proc/$pid/environ"; } 2>/dev/null ||
			! tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q '[h]spmd worker' || echo "$pid"
	done
}
