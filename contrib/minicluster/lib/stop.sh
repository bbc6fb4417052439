# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Ends a private cluster, or one node of it: only processes that it started, and all of them.

# job_pids [NODE]: prints the pids of the processes that slurmd started there. Batch scripts and tasks have this cluster's SLURM_CONF and
# their node's name in their environment; slurmstepd has only SLURM_CONF: its node is that of its tasks. Processes that these started belong
# to them, with any environment.
job_pids() {
	local file pid ppid name node=${1:-n[0-9]+}
	local -A found=() steps=()
	while read -r file; do
		pid=${file//[!0-9]/}
		if grep -qzxE "(SLURMD_NODENAME|MINICLUSTER_NODE)=$node" "$file" 2>/dev/null; then
			found[$pid]=1
		elif { read -r name <"/proc/$pid/comm"; } 2>/dev/null && [[ $name == slurmstepd ]]; then
			steps[$pid]=1
			[[ -n ${1-} ]] || found[$pid]=1
		fi
	done < <(grep -lzxF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null)
	# Parents come before their children often enough; the caller's next round finds a child that was missed.
	while read -r pid ppid; do
		[[ -z ${found[$pid]-} || -z ${steps[$ppid]-} ]] || found[$ppid]=1
		[[ -z ${found[$ppid]-} ]] || found[$pid]=1
	done < <(ps -e -o pid=,ppid= --sort=start_time)
	for pid in "${!found[@]}"; do
		start_time "$pid" >/dev/null && ! is_ancestor "$pid" && printf '%s\n' "$pid"
	done
	return 0
}

daemon_pids() {
	local file name
	for file in "$MINI_DIR"/run/*.pid; do
		name=${file##*/}
		pid_of "${name%.pid}"
	done
	return 0
}

# kill_all COMMAND...: sends SIGKILL to the processes that COMMAND prints, until it prints none.
kill_all() {
	local deadline=$((SECONDS + 10))
	local -a pids
	while mapfile -t pids < <("$@") && ((${#pids[@]} > 0)); do
		end_pids KILL "${pids[@]}"
		((SECONDS < deadline)) || { say "could not end: ${pids[*]}"; return 1; }
		sleep 0.05
	done
}

# A process that a job started may lose its parent when Slurm cancels the job, and then nothing shows to which job it belongs: a process
# seen before is known by pid and start time.
declare -A seen=()
look_at_jobs() {
	local pid
	for pid in $(job_pids); do
		seen[$pid]=$(start_time "$pid") || unset "seen[$pid]"
	done
}

all_pids() {
	local pid
	daemon_pids
	job_pids
	for pid in "${!seen[@]}"; do
		[[ $(start_time "$pid") != "${seen[$pid]}" ]] || printf '%s\n' "$pid"
	done
}

# Slurm ends the jobs first, so that srun and salloc outside of jobs learn of their end; it gets little time, because the folder is removed
# anyway.
cancel_jobs() {
	local deadline=$((SECONDS + 3))
	local -a jobs pids
	pid_of slurmctld >/dev/null || return 0
	mapfile -t jobs < <(timeout 3 squeue -h -o %A 2>/dev/null)
	((${#jobs[@]} > 0)) || return 0
	timeout 3 scancel "${jobs[@]}" 2>/dev/null
	while mapfile -t pids < <(job_pids | grep -vxFf <(daemon_pids)) && ((${#pids[@]} > 0 && SECONDS < deadline)); do
		sleep 0.1
	done
	return 0
}

stop_cluster() {
	local status=0
	[[ -f $MINI_DIR/minicluster.conf && -O $MINI_DIR/minicluster.conf ]] || return 0
	look_at_jobs
	cancel_jobs
	kill_all all_pids || status=1
	remove_networks
	rm -rf -- "$MINI_DIR" || status=1
	return "$status"
}

node_pids() {
	pid_of "$1"
	job_pids "$1"
}

# The effect of a power failure on a node: slurmd, slurmstepd and all tasks are gone at once, and nothing is notified.
kill_node() {
	kill_all node_pids "$1"
}
