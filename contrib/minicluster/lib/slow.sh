# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Nodes that are slower than others: their tasks are stopped for a part of every tenth of a second. This needs no privileges, and works for
# tasks that start later.

# task_pids NODE: prints the batch scripts and tasks there, and the processes that they started; not slurmstepd, which Slurm would miss.
task_pids() {
	local pid
	for pid in $(job_pids "$1"); do
		[[ $(cat "/proc/$pid/comm" 2>/dev/null) == slurmstepd ]] || printf '%s\n' "$pid"
	done
}

# run_slow NODE PERCENT: never returns; started as a daemon of its own by "slow-node".
run_slow() {
	local stopped_s round=0 pipe
	local -a pids=()
	printf -v stopped_s '0.%03d' $((100 - $2))
	printf -v running_s '0.%03d' "$2"
	# Reading from a silent pipe with a time-out is a sleep that needs no process.
	exec {pipe}<> <(:)
	trap 'end_pids CONT "${pids[@]}"; exit 0' TERM
	while :; do
		((round++ % 10)) || mapfile -t pids < <(task_pids "$1")
		end_pids STOP "${pids[@]}"
		read -r -t "$stopped_s" -u "$pipe"
		end_pids CONT "${pids[@]}"
		read -r -t "$running_s" -u "$pipe"
	done
}
