# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Functions that the tests on a private Slurm share. A NAME.test sources this file, defines functions test_..., and ends with run_tests.
#
# Each test runs under set -e in its own folder, on the cluster that start_cluster made for the file; the first command that fails ends the
# test. The result is a line "ok", "not ok" or "skip" per test; all other output is for readers of the log. Every wait has a deadline in
# seconds, and a generous one: tests must pass on two busy cores.
set -uo pipefail

top=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")
build=${HSPMD_BUILD:-$top/build}
minicluster=$top/contrib/minicluster/minicluster
# jq takes 40 ms to start, gojq 3, and a check starts it a thousand times.
if [[ ! -e $build/tests/bin/jq ]] && command -v gojq >/dev/null; then
	mkdir -p "$build/tests/bin" && ln -sfn "$(command -v gojq)" "$build/tests/bin/jq"
fi
export PATH=$build/tests/bin:$build:$PATH

note() {
	printf '  %s\n' "$*"
}

fail() {
	note "failed: $*"
	return 1
}

# skip WHY: ends a test (also one of run_tests_in) that cannot run here.
skip() {
	printf '%s\n' "$*" >"$WORK/skip"
	exit 77
}

# needs COMMAND NAME: without COMMAND, the whole file NAME is skipped.
needs() {
	command -v "$1" >/dev/null || {
		echo "skip $2: there is no $1 here (contrib/packages/requirements lists its package)"
		exit 77
	}
}

# wait_for SECONDS WHAT COMMAND...: looks ten times a second at first, later less often, because looking costs processor time.
wait_for() {
	local seconds=$1 what=$2 looks=0
	shift 2
	local deadline=$((SECONDS + seconds))
	until "$@"; do
		((SECONDS < deadline)) || { fail "waited $seconds s for $what, in vain"; return 1; }
		if ((++looks < 15)); then sleep 0.1; else sleep 0.3; fi
	done
}

# steps_of METRICS: prints "STEP NODES" of each line about a step, in order; a line that is half written is left out. Waits call this again
# and again: jq alone takes 30 ms to start.
steps_of() {
	sed -n 's/^{"step":\([0-9]*\),"loss":.*"nodes":\([0-9]*\),.*}$/\1 \2/p' "$1" 2>/dev/null
}

# resizes_of METRICS CAUSE: prints how many lines tell of a resize with this cause (a pattern).
resizes_of() {
	grep -cE "^\{\"event\":\"resize\",.*\"cause\":\"($2)\".*\}$" "$1" 2>/dev/null
}

# built TARGET...: builds the targets if they are missing; one process at a time, because other tests may want the same targets now.
built() {
	flock "$build/.made-by-tests" make -s -C "$build" "$@"
}

# refuses COMMAND...: the command must fail; its output is in $WORK/said.
refuses() {
	if "$@" >"$WORK/said" 2>&1; then
		fail "should have been refused: $*"
	fi
}

# says PATTERN: the output of the last refused command matches.
says() {
	grep -qE -- "$1" "$WORK/said" || {
		note "expected words that match: $1"
		sed 's/^/  | /' "$WORK/said"
		return 1
	}
}

# not COMMAND...: unlike a plain "!", ends the test under set -e if the command succeeds.
not() {
	! "$@"
}

equal() { # WHAT EXPECTED ACTUAL; a command that failed where EXPECTED should come from leaves it empty
	[[ -n $2 ]] || fail "$1: nothing to compare with"
	[[ $2 == "$3" ]] || fail "$1: expected '$2', got '$3'"
}

none() { # WHAT ACTUAL
	[[ -z $2 ]] || fail "$1: expected none, got '$2'"
}

# explained METRICS: every change of the allocation has its pause, the phases of the pause, and the bytes by source.
explained() {
	none "changes without an explanation" "$(jq -rR 'fromjson? | objects | select(.event == "resize")
		| select((((.phases_s // {}) | [.detect, .settle, .plan, .specialise, .connect, .move, .first_step] | all(type == "number" and . >= 0))
			and (.pause_s >= 0)
			and .bytes_moved == .bytes_from_local + .bytes_from_peers + .bytes_from_shared and .bytes_from_disk <= .bytes_from_local
			and (.cause | type) == "string" and (.state | type) == "string") | not) | .generation' "$1")"
}

# run_alone JOB-FILE OUTPUT: a run by one worker with one thread on this machine, without Slurm and without a lower limit on the time of a
# step, to compare with. Its messages are in OUTPUT.log.
run_alone() {
	# One device has one thread.
	jq -n '{ format: "hspmd-cluster-1", device_types: { core: { kind: "cpu", memory_bytes: 4000000000, gbytes_per_s: 10,
		peak_tflops: { fp32: 0.05 } } },
		nodes: [ { name: "alone", devices: [ { type: "core", count: 256 } ] } ], links: [ { scope: "node", alpha_s: 1e-6, gbytes_per_s: 5 } ] }' \
			>alone-cluster.json
	jq --argjson layers "$(layers_of "$1")" '{ format: "hspmd-plan-1", global_batch, micro_batch: 1, seq_len, schedule: "1f1b", zero_stage: 0,
		pipelines: [ { micro_batches: .global_batch, stages: [ { layers: [0, $layers], devices: ["alone:0"] } ] } ] }' "$1" >alone-plan.json
	env -u SLURM_CONF -u HSPMD_TEST_STEP_S hspmd run --cluster alone-cluster.json --plan alone-plan.json --job "$1" --output "$2" \
		>"$2.log" 2>&1 || { tail "$2.log"; return 1; }
}

# layers_of JOB-FILE: prints how many layers plans of its model have.
layers_of() {
	local model
	model=$(jq -r .model "$1")
	[[ $model == /* || $1 != */* ]] || model=${1%/*}/$model
	[[ $model != *.so && $model != *.c ]] || { jq '.model_config.depth + 2' "$1"; return; } # the example's
	jq '(.text_config // .) | (.n_layer // .num_hidden_layers) + 2' "$model"
}

# undisturbed STEPS: writes undisturbed.jsonl, with the losses of the first STEPS steps of job.json, run by one worker. Tests whose jobs
# train the same share such a run; if the learning rate is constant, it may have more steps than they.
undisturbed() {
	local key shared=$build/tests/undisturbed
	mkdir -p "$shared"
	jq --argjson least "$1" '.checkpoint = { local: "undisturbed-ckpt", every_s: 100000 }
		| .steps = if .optimizer.schedule == "constant" and .steps > 100 then [$least, 60] | max else $least end' job.json >same.json
	key=$({
		jq 'del(.elastic, .data.train) | del(select(.optimizer.schedule == "constant") | .steps)' same.json
		jq -c '.data.train[]? | objects | del(.path)' same.json
		stat -Lc '%i %.Y %s' "$(command -v hspmd)"
		jq -r '.model, (.data.train[]? | .path? // ., (.path? // .) + ".mask")' same.json | xargs -d '\n' cat 2>/dev/null || true # few have masks
	} | md5sum | cut -c 1-32)
	(
		flock 9
		if [[ ! -s $shared/$key.jsonl ]] || (($(steps_of "$shared/$key.jsonl" | wc -l) < $1)); then
			rm -rf undisturbed
			run_alone same.json undisturbed && cp undisturbed/metrics.jsonl "$shared/$key.part" && mv "$shared/$key.part" "$shared/$key.jsonl"
		fi
	) 9>"$shared/$key.lock" || { fail "the undisturbed run failed"; return 1; }
	awk -F '[:,]' -v steps="$1" '/^{"step":[0-9]+,"loss":/ && $2 < steps' "$shared/$key.jsonl" >undisturbed.jsonl
}

# same_losses METRICS: a run on one worker, for as many steps as any generation made (lost steps may not have been repeated yet), has the
# same losses.
same_losses() {
	undisturbed "$(steps_of "$1" | awk '$1 >= steps { steps = $1 + 1 } END { print steps + 0 }')" &&
		"$top/tests/compare-losses" "$1" undisturbed.jsonl
}

# unharmed METRICS: every change is explained, and no generation started from nothing.
unharmed() {
	explained "$1" &&
		none "generations that began from nothing" "$(jq -rR 'fromjson? | objects | select(.state? == "init") | .generation' "$1")"
}

as_undisturbed() { # METRICS
	same_losses "$1" && unharmed "$1"
}

# ---- the cluster

start_cluster() { # [OPTION...]
	trap 'exit 143' TERM HUP
	trap 'exit 130' INT
	trap '[[ -z ${HSPMD_MINI-} ]] || "$minicluster" stop' EXIT
	local environment
	environment=$("$minicluster" start "$@") || exit 1
	eval "$environment"
}

start_cluster_with_plugin() { # [OPTION...]
	local plugin=$build/spank/.libs/hspmd.so
	[[ -f $plugin ]] || { note "$plugin is not built"; exit 1; }
	start_cluster --plugin "$plugin" "$@"
}

job_state() { # JOB
	squeue -h -j "$1" -o %T 2>/dev/null
}

# The last state of a job, from slurmctld's memory: the job may have left the queue.
job_is() { # JOB STATE
	[[ $(scontrol -o show job "$1" 2>/dev/null) == *"JobState=$2 "* ]]
}

job_nodes() { # JOB
	squeue -h -j "$1" -o %N | xargs -r -n 1 scontrol show hostnames | tr '\n' ' '
}

job_has_nodes() { # JOB COUNT
	[[ $(job_nodes "$1" | wc -w) == "$2" ]]
}

job_ended() { # JOB
	[[ $(scontrol -o show job "$1" 2>/dev/null) =~ JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|DEADLINE|BOOT_FAIL) ]]
}

cancel_everything() {
	local -a jobs
	mapfile -t jobs < <(squeue -h -o %A)
	((${#jobs[@]} == 0)) || scancel "${jobs[@]}"
	wait_for 60 "the queue to be empty" queue_is_empty
}

queue_is_empty() {
	[[ -z $(squeue -h) && ! $(sinfo -h -o %T) =~ completing ]]
}

# ---- running the tests of a file

# where LINE COMMAND: reports which command failed, and from which line of the test it was called.
where() {
	local i
	note "at ${BASH_SOURCE[1]##*/}:$1: $2"
	for ((i = 2; i < ${#BASH_SOURCE[@]}; i++)); do
		[[ ${BASH_SOURCE[1]} != "$0" && ${BASH_SOURCE[i]} == "$0" ]] || continue
		note "called at ${0##*/}:${BASH_LINENO[i - 1]}"
		break
	done
	# Report once: the callers fail, too.
	trap - ERR
}

run_one() { # FUNCTION
	local began=$SECONDS status name=${1#test_}
	name=${name//_/ }
	WORK=$HSPMD_MINI/jobs/$1
	mkdir -p "$WORK"
	(
		set -eE
		trap 'where "$LINENO" "$BASH_COMMAND"' ERR
		trap - EXIT
		cd "$WORK"
		"$1"
	)
	status=$?
	case $status in
	0) echo "ok $name ($((SECONDS - began)) s)" ;;
	77) echo "skip $name: $(cat "$WORK/skip")" ;;
	*)
		failures=$((failures + 1))
		show_everything
		echo "not ok $name ($((SECONDS - began)) s)"
		;;
	esac
	cancel_everything || { show_everything; return 1; }
}

# What helps to understand a failed test. A file may add a function show_more.
show_everything() {
	local file
	squeue --all 2>&1 | sed 's/^/  | /'
	sinfo -N 2>&1 | sed 's/^/  | /'
	for file in "$WORK"/*.log "$WORK"/*/*.log "$WORK"/*/metrics.jsonl; do
		[[ -s $file ]] || continue
		note "the end of ${file#"$WORK/"}:"
		tail -n 40 "$file" | cut -c 1-300 | sed 's/^/  | /'
	done
	if [[ $(sinfo -h -o %T) =~ drain|down ]]; then
		note "why nodes are out: $(sinfo -h -R)"
		tail -n 15 "$HSPMD_MINI"/log/n*.log | sed "s/^/  | /"
	fi
	! declare -F show_more >/dev/null || show_more
	note "the end of slurmctld's log:"
	tail -n 30 "$HSPMD_MINI/log/slurmctld.log" | sed 's/^/  | /'
}

# Sets `names` to the functions test_... of the file, in the order in which they are written. HSPMD_ONLY chooses those whose name contains
# it, and is not handed on to what they start.
choose_tests() {
	local only=${HSPMD_ONLY-}
	mapfile -t names < <(sed -n 's/^\(test_[a-z0-9_]*\)() {.*/\1/p' "$0" | grep -F -- "$only")
	((${#names[@]} > 0)) || { echo "not ok HSPMD_ONLY=$only: no test of ${0##*/} has that in its name"; exit 1; }
	unset HSPMD_ONLY
}

# Runs all tests of the file.
run_tests() {
	local name stuck failures=0
	local -a names
	choose_tests
	for name in "${names[@]}"; do
		# Not "run_one || break": set -e has no effect in a command before "||".
		run_one "$name" </dev/null
		stuck=$?
		((stuck == 0)) || break
	done
	exit $((failures > 0))
}

# Sets $spent to the processor time in seconds of the processes that this shell has waited for: fields 16 and 17 of proc_pid_stat(5), in
# hundredths of a second.
look_at_clock() {
	local -a stat
	read -r -a stat <"/proc/$BASHPID/stat"
	spent=$(((stat[15] + stat[16]) / 100))
}

# run_tests_in FOLDER: as run_tests, for tests that need no Slurm, each in its own folder below FOLDER. If a function after_each is defined,
# it runs after each test, whether that passed or failed.
run_tests_in() {
	local name began before spent took status failures=0
	local -a names
	choose_tests
	for name in "${names[@]}"; do
		began=$SECONDS
		look_at_clock
		before=$spent
		WORK=$1/$name
		mkdir "$WORK"
		(
			set -e
			trap 'exit 143' TERM HUP INT
			! declare -F after_each >/dev/null || trap after_each EXIT
			cd "$WORK"
			"$name"
		) # not in a condition: set -e would have no effect
		status=$?
		look_at_clock
		took="$((SECONDS - began)) s, $((spent - before)) s of processor time"
		if ((status == 0)); then
			echo "ok ${name#test_} ($took)"
		elif ((status == 77)); then
			echo "skip ${name#test_}: $(cat "$WORK/skip")"
		else
			echo "not ok ${name#test_} ($took)"
			failures=$((failures + 1))
		fi
	done
	exit $((failures > 0))
}
