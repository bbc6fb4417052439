# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests that run a small job on this machine without Slurm, change it, and compare its losses with those of an undisturbed run. The
# script that reads this file calls `small`, then `run_tests_in "$folder"`.
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"
. "$top/tests/faults/processes.sh"

folder=$(mktemp -d "${TMPDIR:-/tmp}/hspmd-local.XXXXXX")
export HSPMD_CONTACTS=$folder/contacts
trap 'after_each; [[ -n ${HSPMD_KEEP-} ]] || rm -rf "$folder"' EXIT
trap 'exit 143' TERM HUP INT
unset "${!SLURM@}"

# No process that a test has started outlives the test.
after_each() {
	end_processes || true
	remove_memory
}

# change FILTER: prints job.json with one change. $base: where the job is, and its undisturbed run.
base=$folder
change() {
	jq "$1" "$base/job.json" >job.json
}

# small [SEQ_LEN]
small() {
	sample_length=${1-64}
	"$top/contrib/examples/make-corpus" -o "$folder/corpus.bin" 200000
	jq '.n_embd = 32' "$top/contrib/examples/gpt2-tiny.json" >"$folder/gpt2-tiny.json"
	jq --arg f "$folder" --argjson length "$sample_length" '.data.train = [$f + "/corpus.bin"] | .model = $f + "/gpt2-tiny.json" | .steps = 24
		| .optimizer.lr = 3e-4 | .seq_len = $length | .global_batch = 8
		| .checkpoint = { local: ($f + "/ckpt"), every_s: 3600, replicas: 0, keep: 2 }' "$top/contrib/examples/job.json" >"$folder/job.json"
}

ends_with() { # STATUS COMMAND...
	local status=0 expected=$1
	shift
	"$@" >said 2>&1 || status=$?
	equal "status of $*" "$expected" $status
}

plan() { # PIPELINES
	jq -n "{ format: \"hspmd-plan-1\", global_batch: 8, micro_batch: 1, seq_len: ${sample_length-64}, schedule: \"1f1b\", zero_stage: 0,
		pipelines: [ $1 ] }"
}

quietly() {
	"$@" >run.log 2>&1 || { fail "$*"; tail -n 20 run.log; return 1; }
}

reference() {
	[[ -s $folder/reference/metrics.jsonl ]] || run_alone "$folder/job.json" "$folder/reference"
}

like_undisturbed() {
	reference && "$top/tests/compare-losses" "$1/metrics.jsonl" "$folder/reference/metrics.jsonl"
}

# Of runs that are changed, and of the one to compare them with: long enough at the pace below.
changed_steps=60

# at_a_pace [SECONDS]: steps of runs that this test starts take at least 1.5 s, on any machine, until ends_like_undisturbed lifts this.
at_a_pace() {
	export HSPMD_TEST_STEP_S=$WORK/pace
	echo "${1-1.5}" >"$HSPMD_TEST_STEP_S"
}

# start LOCAL: starts a run in the background, which makes steps when this returns; sets $pid.
start() {
	at_a_pace
	change ".steps = $changed_steps"
	hspmd run --job job.json --local "$1" --output o "${@:2}" >run.log 2>&1 &
	pid=$!
	wait_for 120 "steps" has_steps "${2:+1}"
}

has_steps() {
	kill -0 "$pid" 2>/dev/null || { note "the run has ended"; tail -n 5 run.log; exit 1; }
	[[ $(steps_of o/metrics.jsonl | sed -n '$s/ .*//p') -gt 2 ]]
}

# The controller process: a child of the process that was started, which supervises it.
controller() {
	jq .pid o/contact.json
}

long_reference() {
	[[ ! -s $base/long/metrics.jsonl ]] || return 0
	jq ".steps = $changed_steps" "$base/job.json" >"$base/long.json"
	run_alone "$base/long.json" "$base/long"
}

ends_like_undisturbed() {
	rm -f "$HSPMD_TEST_STEP_S"
	wait "$pid" || { fail "the run failed"; tail -n 20 run.log; return 1; }
	long_reference && "$top/tests/compare-losses" o/metrics.jsonl "$base/long/metrics.jsonl"
}

first_resize() { # FILTER
	jq -rn "first(inputs | select(.event == \"resize\") | $1)" o/metrics.jsonl
}

# Prints the pid of the last node's agent.
last_agent() {
	pgrep -P "$(controller)" | tail -n 1
}
