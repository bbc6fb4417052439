# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Messages, waits with a deadline, and processes that can be found again.
#
# A process is recorded in $MINI_DIR/run/NAME.pid as "PID STARTTIME" (field 22 of /proc/PID/stat), so that a process to which the kernel has
# given the same number since is never signalled.

say() {
	printf 'minicluster: %s\n' "$*" >&2
}

die() {
	say "$@"
	exit 1
}

# start_time PID: its start, in clock ticks since boot; fails if the process has ended.
start_time() {
	local stat
	{ read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
	# The name in parentheses may contain spaces: count the fields after it. A zombie counts as ended.
	stat=${stat##*) }
	[[ $stat != Z* ]] || return 1
	local -a field
	read -ra field <<<"$stat"
	printf '%s\n' "${field[19]}"
}

remember() { # NAME PID
	printf '%s %s\n' "$2" "$(start_time "$2")" >"$MINI_DIR/run/$1.pid"
}

# pid_of NAME: prints the pid of a recorded process if it is still the one that was started.
pid_of() {
	local pid started
	{ read -r pid started <"$MINI_DIR/run/$1.pid"; } 2>/dev/null || return 1
	[[ -n $started && $(start_time "$pid") == "$started" ]] || return 1
	printf '%s\n' "$pid"
}

# spawn NAME COMMAND...: starts a daemon in a session of its own, separate from the caller's terminal, pipes and locks, and from any Slurm
# job in which the caller runs.
spawn() {
	local name=$1
	shift
	(
		local fd variable
		for fd in "/proc/$BASHPID/fd/"*; do
			fd=${fd##*/}
			((fd <= 2)) || eval "exec $fd>&-"
		done
		for variable in "${!SLURM@}"; do
			[[ $variable == SLURM_CONF ]] || unset "$variable"
		done
		trap - INT TERM EXIT
		cd / && exec setsid "$@" </dev/null >>"$MINI_DIR/log/$name.out" 2>&1
	) 2>/dev/null &
	remember "$name" $!
	disown $!
}

# wait_until SECONDS WHAT LOG COMMAND...: polls until COMMAND succeeds; after the deadline, or when daemon LOG has died, reports what did
# not happen and shows the end of that daemon's log.
wait_until() {
	local seconds=$1 what=$2 log=$3
	shift 3
	local deadline=$((SECONDS + seconds))
	until "$@" >/dev/null 2>&1; do
		if ! pid_of "$log" >/dev/null; then
			say "$log has ended while waiting for $what"
		elif ((SECONDS >= deadline)); then
			say "waited $seconds s for $what, in vain"
		else
			sleep 0.1
			continue
		fi
		show_log "$log"
		return 1
	done
}

show_log() { # NAME
	local file
	for file in "$MINI_DIR/log/$1.out" "$MINI_DIR/log/$1.log"; do
		[[ -s $file ]] || continue
		say "the end of $file:"
		tail -n 20 "$file" >&2
	done
}

# is_ancestor PID: true for this shell and those that started it; they must outlive the processes that we end.
is_ancestor() {
	local pid=$BASHPID stat
	local -a field
	while ((pid > 1)); do
		[[ $pid != "$1" ]] || return 0
		{ read -r stat <"/proc/$pid/stat"; } 2>/dev/null || return 1
		read -ra field <<<"${stat##*) }"
		pid=${field[1]}
	done
	return 1
}

# end_pids SIGNAL PID...: sends it to those that are still alive.
end_pids() {
	local signal=$1 pid
	shift
	for pid in "$@"; do
		kill -s "$signal" "$pid" 2>/dev/null || true
	done
}
